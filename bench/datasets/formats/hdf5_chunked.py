"""Read and write HDF5 files that store each record in a separate chunk, with the library h5py."""

from __future__ import annotations

from bench.datasets.formats.hdf5 import Hdf5


class Hdf5Chunked(Hdf5):
    """Every record is a chunk."""

    chunked = True


FORMAT = Hdf5Chunked()
