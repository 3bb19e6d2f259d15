"""Hydra's search path gets the configurations of `apo_plan`, after those of the framework."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class PlanConfigs(SearchPathPlugin):
    """Hydra finds the class because the package lies in `hydra_plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append `apo_plan/configs`."""
        search_path.append(provider="apo_plan", path="pkg://apo_plan.configs")
