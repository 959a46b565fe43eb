"""What every test run shares: hypothesis's profiles, the loop of async tests, and which skips CI accepts."""

import os
import signal
import threading
import tomllib
from fnmatch import fnmatchcase

import hypothesis
import msgspec
import pytest

ON_CI = os.environ.get("CI") == "true"

# `nohup` and a shell's `&` have what they start ignore signals, and so would every program that a test interrupts.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# No deadline: on a shared machine a slow example says nothing about the code.
# A machine under load generates slowly: no timing may decide a test, hypothesis's own included.
SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=SLOW_IS_FINE)
# On CI the examples are the same every time, so that a change is judged by what it does and not by its luck.
hypothesis.settings.register_profile(
    "ci",
    max_examples=500,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=SLOW_IS_FINE,
)
hypothesis.settings.load_profile("ci" if ON_CI else "dev")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Host and providers run on asyncio; so do the tests marked `anyio`."""
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    """Judges skips on CI; elsewhere a part that this machine lacks is only named in the summary."""
    if ON_CI:
        # Where several processes share the tests, the one that hands them out sees every test's report, and of modules
        # that were not collected only those that failed.
        kind = SharedSkipPolicy if hasattr(config, "workerinput") else SkipPolicy
        config.pluginmanager.register(kind(config), "skip-policy")


class AllowedSkip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of skips.toml: the tests it means, and what their reason must say."""

    test: str
    reason: str

    def covers(self, test: str, reason: str) -> bool:
        return fnmatchcase(test, self.test) and self.reason in reason


class SkipList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of skips.toml."""

    skip: tuple[AllowedSkip, ...] = ()


class SkipPolicy:
    """Fails the run on a skip that skips.toml does not list, and on an entry that no skip answered to."""

    def __init__(self, config: pytest.Config) -> None:
        text = (config.rootpath / "tests" / "skips.toml").read_text(encoding="utf-8")
        self.allowed = msgspec.convert(tomllib.loads(text), SkipList).skip
        self.used: set[AllowedSkip] = set()
        self.faults: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.judge(report.nodeid, report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.judge(report.nodeid, report.longrepr)

    def judge(self, test: str, longrepr: object) -> None:
        """Notes one skip; pytest gives its place and reason as a tuple of path, line and text."""
        reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
        covering = [entry for entry in self.allowed if entry.covers(test, reason)]
        self.used.update(covering)
        if not covering:
            self.faults.append(f"tests/skips.toml does not list the skip of {test}: {reason}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if ran_whole(session.config):
            stale = [entry for entry in self.allowed if entry not in self.used]
            self.faults += [f"stale entry in tests/skips.toml, nothing was skipped: {e.test}" for e in stale]
        if self.faults and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.faults:
            terminalreporter.section("skip policy", red=True, bold=True)
            for fault in self.faults:
                terminalreporter.line(fault)


class SharedSkipPolicy:
    """In one of several processes: a module that must not be skipped has failed."""

    def __init__(self, config: pytest.Config) -> None:
        self.policy = SkipPolicy(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.policy.pytest_collectreport(report)
        if self.policy.faults:
            report.outcome = "failed"
            report.longrepr = self.policy.faults.pop()


def ran_whole(config: pytest.Config) -> bool:
    """Whether this run was asked for every test, so that an entry without a skip is known to be stale."""
    chosen = config.getoption("keyword") or config.getoption("markexpr") or config.getoption("deselect")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
