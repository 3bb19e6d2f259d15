"""Adds the configurations of `distinct_answers` to Hydra's search path."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class DistinctAnswersConfigs(SearchPathPlugin):
    """Hydra finds the class because the package lies in `hydra_plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append `distinct_answers/configs`."""
        search_path.append(provider="distinct_answers", path="pkg://distinct_answers.configs")
