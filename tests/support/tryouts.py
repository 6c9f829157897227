"""A guard with its training images on disk, and its page served while a test looks at it."""

import threading
from contextlib import contextmanager

import uvicorn
from PIL import Image

import sirc
from sirc.data import image_folder
from support.tiny_selective import CLASSES, PREPROCESS, pixels

COUNT = 30


def write_training(folder, guard, count=COUNT):
    """Write images to `train`, with a folder for each class, and the guard's outputs of them to `kept/train`."""
    for number in range(count):
        path = folder / "train" / CLASSES[number % 3] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(path)
    images = image_folder(folder / "train", classes=CLASSES, transform=PREPROCESS.test())
    sirc.extract(guard.model, images, folder / "kept" / "train", head=guard.head_name)
    return {"train": folder / "train", "outputs": folder / "kept" / "train"}


@contextmanager
def served(app):
    """Serve an application from a thread: its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    sockets = [server.config.bind_socket()]
    thread = threading.Thread(target=server.run, args=(sockets,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
