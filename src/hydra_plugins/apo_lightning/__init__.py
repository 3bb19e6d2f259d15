"""A user's `configs/` in the working directory, ahead of the framework's: an option of the same name wins."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class UserConfigs(SearchPathPlugin):
    """Found by Hydra by its place in `hydra_plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put `./configs` first, where there is one."""
        folder = Path.cwd() / "configs"
        if folder.is_dir():
            search_path.prepend(provider="user", path=f"file://{folder}")
