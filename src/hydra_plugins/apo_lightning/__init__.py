"""Hydra's search path begins with the user's `./configs`: an option of the same name wins over the framework's."""

from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

import apo_lightning


class UserConfigs(SearchPathPlugin):
    """Hydra finds the class because the package lies in `hydra_plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put `./configs` first, if it exists; in a clone it is the framework's own and on the path already."""
        folder, own = Path.cwd() / "configs", Path(apo_lightning.__file__).parent / "configs"
        if folder.is_dir() and not folder.samefile(own):
            search_path.prepend(provider="user", path=f"file://{folder}")
