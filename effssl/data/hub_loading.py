"""Where the splits of a Hugging Face data set come from: a folder, the caches on this machine, or the Hub.

A folder holds what `save_to_disk` writes, or Parquet files called train-….parquet. A name is looked up in the cache of
`datasets`, which holds what it has loaded before, then in the cache of downloaded files, and then on the network.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from effssl.data.cifar import data_folder
from effssl.runtime.errors import RequestError, Stopped
from effssl.runtime.progress import err, say
from effssl.runtime.reading import check_regular, describe

READ = (".arrow", ".json", ".parquet")  # suffixes of the files that are opened
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # of a data set on the Hub
SHARD = re.compile(r"(.+)-\d+-of-0*(\d+)\.parquet")
ANSWER = 10.0  # seconds in which the Hub answers; its own client would try again for half a minute

Splits = dict[str, Any]  # a data set by the name of its split


def is_name(text: str) -> bool:
    """Whether a text may name a data set of the Hub.

    >>> [is_name(text) for text in ("cifar10", "owner/cifar10", "/photos", "~/photos", "a/b/c")]
    [True, True, False, False, False]
    """
    return NAME.fullmatch(text) is not None


def load_folder(datasets: ModuleType, folder: Path) -> Splits:
    """The data set of each split of a folder; one without splits is called train."""
    try:
        for file in folder.rglob("*"):
            if file.suffix in READ:
                check_regular(file)
        with _quiet(datasets):
            return _validated(_open_splits(datasets, folder))
    except Stopped:
        raise
    except Exception as error:  # damaged files raise anything: ArrowInvalid, KeyError, JSONDecodeError …
        raise RequestError(f"{folder} is not a data set that can be read: {describe(error)}") from None


def _open_splits(datasets: ModuleType, folder: Path) -> Splits:
    if (folder / "dataset_dict.json").is_file():
        return dict(datasets.load_from_disk(str(folder)))
    if (folder / "state.json").is_file():
        return {"train": datasets.load_from_disk(str(folder))}
    by_split: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.parquet")):
        by_split.setdefault(file.stem.partition("-")[0], []).append(str(file))
    cache = str(data_folder() / "hf")
    return {name: datasets.Dataset.from_parquet(some, cache_dir=cache) for name, some in by_split.items()}


def _validated(found: Splits) -> Splits:
    """The same; a damaged Arrow file would crash the process when its rows are read."""
    for data in found.values():
        data.data.validate(full=True)
    return {name: data.with_format(None) for name, data in found.items()}  # rows as they are stored, all columns


# ---------------------------------------------------------------------------------------------------------------
# By name


def load_name(datasets: ModuleType, name: str) -> Splits:
    """The data set of each split of a set that the Hub knows by this name."""
    found = _cached(datasets, name)
    if found is not None:
        return found
    files = _downloaded_files(name)
    return _fetch(datasets, name) if files is None else load_folder(datasets, files)


def _cached(datasets: ModuleType, name: str) -> Splits | None:
    """From the cache of `datasets`; None if the set is not there."""
    try:
        with _quiet(datasets), _offline(datasets):
            return _validated(dict(datasets.load_dataset(name)))
    except Stopped:
        raise
    except (ConnectionError, FileNotFoundError):
        return None
    except Exception as error:  # several configurations of one name, or files that are damaged
        where = datasets.config.HF_DATASETS_CACHE
        raise RequestError(f"hf:{name} cannot be read from {where}: {describe(error)}; {_instead()}") from None


def _downloaded_files(name: str) -> Path | None:
    """The folder of the Parquet files of a set that were downloaded before, if all of them are there."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
    except (OSError, ValueError):
        return None
    files = list(folder.rglob("*.parquet"))
    shards = [found for file in files if (found := SHARD.fullmatch(str(file)))]
    there, expected = Counter(found[1] for found in shards), {found[1]: int(found[2]) for found in shards}
    return folder if files and there == expected else None


def _fetch(datasets: ModuleType, name: str) -> Splits:
    """From the network, into the cache of `datasets`."""
    from huggingface_hub import HfApi

    try:
        HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(name, timeout=ANSWER)
        say(f"fetching {name} from {datasets.config.HF_ENDPOINT} into {datasets.config.HF_DATASETS_CACHE}")
        with _quiet(datasets):
            return _validated(dict(datasets.load_dataset(name)))
    except Stopped:
        raise
    except Exception as error:  # whatever the Hub's client raises: no network, no such set, no access
        raise RequestError(
            f"hf:{name} is neither a local folder nor in {datasets.config.HF_DATASETS_CACHE}, and cannot be fetched: "
            f"{describe(error)}; {_instead()}"
        ) from None


def _instead() -> str:
    return "put its train-….parquet files, or what save_to_disk writes, into a folder and give hf:FOLDER"


@contextmanager
def _offline(datasets: ModuleType) -> Iterator[None]:
    """A block in which `datasets` reads its cache alone, as the variable HF_HUB_OFFLINE makes it."""
    before, datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(datasets: ModuleType) -> Iterator[None]:
    """A block without the log of `datasets`, and without its bars where there is no terminal."""
    level, bars = datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()
    datasets.logging.set_verbosity(logging.ERROR)
    if bars and (err.quiet or not err.is_terminal):
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()
