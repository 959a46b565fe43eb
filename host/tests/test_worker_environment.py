"""What a worker may see: an allow-list, what the operator grants, what the configuration sets; the later wins."""

from hypothesis import given
from hypothesis import strategies as st

from sandport.worker.environment import ALLOWED, TOKEN, allowed, withheld, worker_environment

NAMES = st.sampled_from(["PATH", "LC_ALL", "HOME", "AWS_SECRET_ACCESS_KEY", "X_TOKEN", "PYTHONPATH", TOKEN])
VALUES = st.sampled_from(["host", "other"])


@given(
    environ=st.dictionaries(NAMES, VALUES),
    granted=st.lists(NAMES),
    settings=st.dictionaries(NAMES, st.just("setting")),
)
def test_a_variable_comes_from_the_last_of_allow_list_grant_and_setting(
    environ: dict[str, str], granted: list[str], settings: dict[str, str]
) -> None:
    """hashicorp/vault#5177, PR #25128 (L06): the host's variables overrode the plugin's own, or were missing."""
    env = worker_environment(environ, granted=granted, settings=settings, token="t")
    expected = {name: value for name, value in environ.items() if allowed(name) or name in granted}
    assert env == {**expected, **settings, TOKEN: "t"}


def test_a_hosts_keys_stay_with_the_host() -> None:
    """UsefulSoftwareCo/executor#1595, Temikus/denkeeper#219 (L07): workers were given the whole environment."""
    environ = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "k", "GITHUB_TOKEN": "g", "LD_PRELOAD": "x", "PYTHONPATH": "y"}
    assert worker_environment(environ, granted=(), settings={}, token="t") == {"PATH": "/bin", TOKEN: "t"}


def test_nothing_on_the_allow_list_is_a_secret_or_changes_what_runs() -> None:
    suspicious = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PRELOAD", "PYTHON", "NODE_OPTIONS")
    assert [name for name in ALLOWED if any(word in name for word in suspicious)] == []


def test_what_the_provider_wants_and_the_host_has_but_did_not_give_is_withheld() -> None:
    """griptape-ai/griptape-nodes-engine#4791 (L08): the error said only that the worker had closed."""
    environ = {"HOME": "/h", "X_TOKEN": "x", "Y": "y"}
    assert withheld(environ, ("X_TOKEN", "HOME", "MISSING"), {"HOME"}) == ("X_TOKEN",)
