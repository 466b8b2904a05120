//! The settings of strategies as training files write them.

use super::communication_settings::CommunicationSettings;
use crate::config::{DefaultValue, Field, Kind};
use crate::replicas::Reduction;

pub(super) const DEVICES: Field = Field::new(
    "devices",
    Kind::Text,
    DefaultValue::Words(
        "the GPUs or TPU cores that are there, else the CPU, in as many parts as `mesh` and `pipeline` need",
    ),
    "`cpu:4` for the CPU in 4 parts, `gpu` or `tpu` for all of them, `gpu:0,gpu:1` for these",
)
.example("cpu:2");
pub(super) const DEVICES_OF_WORKER: Field = Field::new(
    "devices",
    Kind::Text,
    DefaultValue::Words(
        "of one process as for `mirrored`; of several the CPU, in as many parts as PHALANX_DEVICES_PER_WORKER says",
    ),
    "`cpu:2` for the CPU of each process in 2 parts; `gpu` in several processes was never tried on a GPU",
)
.example("cpu:2");
pub(super) const PARAMETER_DEVICE: Field = Field::new(
    "parameter_device",
    Kind::Text,
    DefaultValue::Words("`cpu:0`, or the one device that computes"),
    "the device of the variables",
);
pub(super) const REDUCTION: Field = Field::optional(
    "reduction",
    Kind::Section(Reduction::FIELDS),
    "how gradients are added",
);
pub(super) const COMMUNICATION: Field = Field::optional(
    "communication",
    Kind::Section(CommunicationSettings::FIELDS),
    "what carries values between processes, and how long they wait for each other; in what packs and element type gradients travel is in `reduction`",
);
pub(super) const SHARES: Field = Field::new(
    "shares",
    Kind::List(&Kind::Whole(1, u32::MAX as i64), 1, usize::MAX),
    DefaultValue::Words("equal parts"),
    "the part of each batch that each device gets, such as its speed; every device needs the memory of the largest part",
)
.example("[2, 1]");
pub(super) const VERIFY_EVERY: Field = Field::new(
    "verify_every",
    Kind::POSITIVE,
    DefaultValue::Words("never"),
    "number of steps after which the copies are compared; a difference ends the training and names the variable",
);
pub(super) const AXES: Field = Field::required(
    "axes",
    Kind::Map(&Kind::POSITIVE),
    "names of axes with their sizes, whose product is the number of devices; more devices stay idle, with a warning",
)
.example("{data: 2, model: 2}");
pub(super) const STAGES: Field =
    Field::required("stages", Kind::POSITIVE, "number of stages").example("2");
pub(super) const MICRO_BATCHES: Field = Field::new(
    "micro_batches",
    Kind::POSITIVE,
    DefaultValue::Words("as many as stages"),
    "number of parts that a batch is cut into",
);
pub(super) const STARTING_AT: Field = Field::new(
    "starting_at",
    Kind::TEXTS,
    DefaultValue::Words("stages of equal memory"),
    "the names of the layers that the second stage and all later ones begin with",
);
pub(super) const MODE: Field = Field::new(
    "mode",
    Kind::OneOf(&["async", "bounded_staleness", "sync"]),
    DefaultValue::Words("async"),
    "`async`: nobody waits; `bounded_staleness`: nobody is more than `staleness` steps ahead; `sync`: all step together",
)
.example("sync");
pub(super) const STALENESS: Field = Field::new(
    "staleness",
    Kind::Whole(0, i64::MAX),
    DefaultValue::Words("10"),
    "of `bounded_staleness`: the most steps that a worker is ahead of another",
);
pub(super) const BACKUP_WORKERS: Field = Field::new(
    "backup_workers",
    Kind::Whole(0, i64::MAX),
    DefaultValue::Words("0"),
    "of `sync`: the number of workers that a step does not wait for",
);
pub(super) const SHARDS: Field = Field::new(
    "shards",
    Kind::POSITIVE,
    DefaultValue::Words("variables are whole"),
    "number of shards of each variable; with a size in bytes the most shards",
);
pub(super) const MIN_SHARD_BYTES: Field = Field::new(
    "min_shard_bytes",
    Kind::POSITIVE,
    DefaultValue::Words("no bound"),
    "cuts variables into shards of at least this number of bytes, as many as `shards` allows",
);
pub(super) const MAX_SHARD_BYTES: Field = Field::new(
    "max_shard_bytes",
    Kind::POSITIVE,
    DefaultValue::Words("no bound"),
    "cuts variables into shards of at most this number of bytes",
);
pub(super) const TABLE_BYTES: Field = Field::new(
    "table_bytes",
    Kind::COUNT,
    DefaultValue::Words("16777216"),
    "an `embedding` whose table has at least this number of bytes is kept by its rows: only the rows that a batch names travel, where the optimizer leaves the others alone",
);
pub(super) const OVERLAP: Field = Field::new(
    "overlap",
    Kind::Bool,
    DefaultValue::Words("false"),
    "each worker pulls and pushes while it computes, with values that lack its own last update; not for `sync`",
);
pub(super) const WIRE: Field = Field::new(
    "wire",
    Kind::OneOf(&["same", "bf16", "bfloat16"]),
    DefaultValue::Words("same"),
    "the element type in which 32-bit gradients and values travel between workers and servers, which keep 32 bits; `same` is their own",
);
pub(super) const CACHE_ROWS: Field = Field::new(
    "cache_rows",
    Kind::COUNT,
    DefaultValue::Words("0"),
    "of tables that are kept by their rows: the most rows that each worker keeps after it has pulled them, to use them again while the mode permits; such rows lack its own last updates too",
);
pub(super) const CACHE_STEPS: Field = Field::new(
    "cache_steps",
    Kind::Whole(0, i64::MAX),
    DefaultValue::Words("0"),
    "of `async`, with `cache_rows`: for how many of its next batches a worker uses a row that it keeps; `bounded_staleness` keeps its own bound, `sync` keeps none",
);
pub(super) const GO_ON_WITHOUT_CHIEF: Field = Field::new(
    "go_on_without_chief",
    Kind::Bool,
    DefaultValue::Words("false"),
    "when the first worker is lost the others go on to the end of the epoch and wait there for another in its place",
);
