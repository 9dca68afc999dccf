"""Define the messages about data sets: codes and texts for skipped rows, failed rows and refusals."""

from __future__ import annotations

from bench.core.codes import Code


class DatasetSkip(Code):
    """Why a row cannot be read."""

    NOT_INSTALLED = "format-not-installed", "{files} needs {packages}: pip install {packages}"
    NOT_INDEXED = "not-indexed", "{files} has no index to find single records: use --read-order sequential or shuffled"
    NO_DIRECT_IO = (
        "no-direct-io",
        "{files} cannot be read with O_DIRECT here: omit --direct-io, or read --files raw from a folder (not from a "
        "bucket)",
    )
    NO_BLOCKS = "no-blocks", "the reader of {files} chooses its own block size: omit --block"
    UNALIGNED_BLOCKS = (
        "unaligned-blocks",
        "O_DIRECT reads whole pages: give a --block that is a multiple of {page_bytes} bytes",
    )
    NO_AHEAD = (
        "no-ahead",
        "the kernel cannot read ahead for {files} here: omit --ahead. Read-ahead works only for some formats, only "
        "in a folder, and not with O_DIRECT",
    )
    NO_OBJECTS = "no-objects", "{files} cannot be read from a bucket: use --files raw, tar, webdataset, tfrecord or mds"
    NEVER_WARM = "never-warm", "--cache hot is impossible for a bucket, whose client has no cache: use --cache cold"
    NOT_SHARED = (
        "not-shared",
        "{host} does not see {folder}: give --folder on a file system that all hosts share, or --method file",
    )
    NO_DEVICE = "no-device", "records cannot be copied to a GPU: {why}"
    NO_DEVICE_WORK = (
        "no-device-work",
        "--to device cannot be combined with --prepare, --worker-kind or --step-time: omit --to device, or these "
        "options",
    )
    NO_GPU_LIBRARY = "no-gpu-library", "--to gds needs KvikIO: pip install {package} (or kvikio-cu13)"
    GPU_LIBRARY_FAILS = "gpu-library-fails", "KvikIO cannot be loaded: {why}"
    NO_GPU_FORMAT = (
        "no-gpu-format",
        "in {files}, the host must read the data to find the records, but KvikIO reads only into the GPU: use "
        "--files raw or mds",
    )
    NO_GPU_OPTION = "no-gpu-option", "KvikIO opens the files itself: omit --ahead and --direct-io"
    NO_GPU_OBJECTS = (
        "no-gpu-objects",
        "KvikIO can read only files in a folder, and {folder} is a bucket: give --folder on a disk",
    )
    READS_ONLY = "reads-only", "a single rank has no other rank to exchange data with: start several ranks"
    ALWAYS_DEVICE = (
        "always-device",
        "--cache hot needs the page cache, but reads with --direct-io or --to gds bypass this cache: use --cache cold",
    )
    IN_MEMORY = (
        "folder-in-memory",
        "{folder} is on {file_system}, a file system in memory, so its files are never cold: give --folder on a "
        "disk, or use --cache hot (with feed)",
    )
    NOT_COUNTED = (
        "not-counted",
        "{folder} is on {file_system}, whose reads cannot be counted reliably, so a cold read cannot be proved: give "
        "--folder on another file system",
    )
    COUNTED_TOGETHER = (
        "counted-together",
        "reads from {file_system} ({folder}) are counted only at the network interfaces, where the ranks of a host "
        "cannot be told apart: start one rank per host",
    )
    NO_SPACE = "no-space", "{folder} has too little space for {num_bytes:bytes} of data: {lacking:bytes} are missing"
    TOO_FEW_BATCHES = (
        "too-few-batches",
        "with {num_workers:n worker}, a worker gets as few as {num} of {num_records:n record}. To measure the wait, "
        "each worker needs three batches of {batch:n record}: use larger --sizes, a smaller --record or --batch, or "
        "fewer --workers",
    )
    ISOLATED_ONLY = (
        "isolated-only",
        "passes cannot be pipelined, because the suite checks the cache state of each pass: use --mode isolated",
    )


class DatasetFailure(Code):
    """The reasons why a row that reads a data set is invalid."""

    NOT_COLD = (
        "not-cold",
        "the files were not cold: the page cache already had {pages:n page} of these files before a pass, and the "
        "device delivered {share:.3f} bytes per requested byte (required: at least 0.99)",
    )
    NOT_WARM = (
        "not-warm",
        "the files were not warm: the device delivered {share:.3f} bytes per requested byte (allowed: at most 0.01)",
    )
    NOT_IN_MEMORY = (
        "not-in-memory",
        "the files were not warm: before or after a pass, the page cache lacked {pages:n page} of these files",
    )


class DatasetError(Code):
    """Errors that end a run."""

    FOLDER = "folder-unusable", "--folder {folder} cannot be used: {why}"
    NO_CLIENT = "no-client", "{url} needs {package}: pip install {package}"
    SILENT = "silent-server", "{place} did not answer in time (--timeout): {why}"
    WRITE = "write-failed", "the data set cannot be written to {folder}: {why}"
    READ = "read-failed", "the data set in {folder} cannot be read: {why}"
    CHECKPOINT_WRITE = "checkpoint-write-failed", "rank {rank} cannot write its checkpoint to {folder}: {why}"
    CHECKPOINT_READ = "checkpoint-read-failed", "rank {rank} cannot read its checkpoint back from {folder}: {why}"
    CORRUPTED = "corrupted-record", "record {record} differs from its checksum: {file} is damaged"


class DatasetNote(Code):
    """Notes on the folder."""

    REMOVED = (
        "removed-leftovers",
        "removed {num:n folder} ({num_bytes:bytes}) of killed runs in {parent}",
    )
    CLIENT_COLD = (
        "client-cold",
        "{folder} is on {file_system}: only the client's cache is known to be cold, because linkbench cannot check "
        "the server's cache",
    )
