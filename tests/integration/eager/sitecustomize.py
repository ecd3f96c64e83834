"""Dagster's backfill daemon looks for work every 30 s, and has no setting for it. With this folder on its path it looks more often.

Python runs this in every process of a deployment under test; nothing but the daemon is changed.
"""

import sys

SECONDS = 2

if "dagster._daemon" in sys.orig_argv or any(argument.endswith("dagster-daemon") for argument in sys.orig_argv):
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = SECONDS
