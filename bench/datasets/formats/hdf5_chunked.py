"""Read and write HDF5 files whose chunks have one record each, with the library h5py."""

from __future__ import annotations

from bench.datasets.formats.hdf5 import Hdf5


class Hdf5Chunked(Hdf5):
    """Every record is a chunk."""

    chunked = True


FORMAT = Hdf5Chunked()
