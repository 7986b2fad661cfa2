"""What all tests share: Hypothesis profiles, an environment without keys, and the browser."""

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine, whatever its speed; `make soak` looks for new ones.
_any_speed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, derandomize=True, **_any_speed)
settings.register_profile("soak", max_examples=2000, **_any_speed)
settings.load_profile("quick")

# Tests and the kernels that they start see what a new reader without a key sees.
for _name in [name for name in os.environ if name.startswith(("AGENT_", "AGENTLAB_"))]:
    del os.environ[_name]
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; without one the test is skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on PATH (Debian: apt-get install chromium)")
    return found
