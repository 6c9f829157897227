"""The production monitor: tests the acceptance rate and bounds the OOD share, without labels.

Example:
    >>> import numpy as np
    >>> from sirc.deploy.monitor import monitor
    >>> rng = np.random.default_rng(0)
    >>> calibration, production = rng.normal(size=2000), rng.normal(size=1000) - 1
    >>> now = monitor(calibration, production, threshold=-1.5)
    >>> now.alarm, now.rate < now.promised
    (True, True)
"""

from sirc.deploy.monitor.monitoring import Monitor, Monitoring, monitor

__all__ = ["Monitor", "Monitoring", "monitor"]
