"""Hydra's search path gets the configurations of planner, methods, reports and laboratory, after the framework's."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class PackageConfigs(SearchPathPlugin):
    """Hydra finds the class because the package lies in `hydra_plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append their folders `configs`."""
        for name in ("apo_methods", "apo_report", "apo_lab", "apo_plan"):
            search_path.append(provider=name, path=f"pkg://{name}.configs")
