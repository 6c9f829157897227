"""Training of networks on images: the recipe, the loop, augmentation and checkpoints."""

from sirc.training.augment import crop_size
from sirc.training.checkpoint import Epoch
from sirc.training.loop import train
from sirc.training.preflight import refuse_labels
from sirc.training.recipe import Augment, Train

__all__ = ["Augment", "Epoch", "Train", "crop_size", "refuse_labels", "train"]
