"""The one error hierarchy: every error a person can cause or meet carries an exit code and the way out."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `python -m marin_jobs`, after sysexits.h; retries treat each class differently."""

    DONE = 0
    BAD_CONFIG = 64
    BAD_DATA = 65
    BUG = 70
    TRY_AGAIN = 75
    PREEMPTED = 143


class MarinError(Exception):
    """Base of all errors meant for people.

    Args:
        message: what is wrong and where (artifact, file, record, field), with the offending value.
        advice: what to do about it, as one imperative sentence.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n  What to do: {self.advice}"


class ConfigError(MarinError):
    """The experiment, a handle or a job's configuration is wrong. Never retried."""

    exit_code = ExitCode.BAD_CONFIG


class DataError(MarinError):
    """Input data is broken or doesn't match what reads it. Never retried."""

    exit_code = ExitCode.BAD_DATA


class SupersededError(MarinError):
    """Another builder has taken over: this one lost its lease and can't change the artifact any more. Never retried."""

    exit_code = ExitCode.BAD_CONFIG


class InfrastructureError(MarinError):
    """A disk, a network, a store or a process failed; the same attempt may succeed later."""

    exit_code = ExitCode.TRY_AGAIN


class PreemptedError(MarinError):
    """The job was asked to stop, has saved what it can, and expects to be resumed."""

    exit_code = ExitCode.PREEMPTED


def told_error(exit_code: int, message: str, advice: str) -> MarinError:
    """The error that another process told: of the class of its exit code."""
    classes: dict[int, type[MarinError]] = {
        ExitCode.BAD_CONFIG: ConfigError,
        ExitCode.BAD_DATA: DataError,
        ExitCode.TRY_AGAIN: InfrastructureError,
    }
    return classes.get(exit_code, MarinError)(message, advice=advice)
