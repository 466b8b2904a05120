//! Strategies as training files write them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use phalanx_graph::Mesh;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::communication_settings::CommunicationSettings;
use super::default_devices::idle_warning;
use super::multi_worker::devices_per_worker;
use super::named_fields::{
    AXES, BACKUP_WORKERS, CACHE_ROWS, CACHE_STEPS, COMMUNICATION, DEVICES, DEVICES_OF_WORKER,
    GO_ON_WITHOUT_CHIEF, MAX_SHARD_BYTES, MICRO_BATCHES, MIN_SHARD_BYTES, MODE, OVERLAP,
    PARAMETER_DEVICE, REDUCTION, SHARDS, SHARES, STAGES, STALENESS, STARTING_AT, TABLE_BYTES,
    VERIFY_EVERY, WIRE,
};
use super::{
    CentralStorageStrategy, MeshStrategy, MirroredStrategy, Mode, MultiWorkerMirroredStrategy,
    OneDeviceStrategy, ParameterServerOptions, ParameterServerStrategy, Partitioner,
    PipelineStrategy, Strategy,
};
use crate::config::{self, Component, Description, Field};
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{DeviceChoice, MOST_CPU_DEVICES, Placement, Reduction, WireFormat};
use crate::{Error, Result};

/// A strategy as a training file writes it: a name and settings, and the devices that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedStrategy {
    kind: StrategyKind,
    devices: Option<DeviceChoice>,
    settings: StrategySettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StrategyKind {
    OneDevice,
    Mirrored,
    MultiWorker,
    CentralStorage,
    Mesh,
    Pipeline,
    ParameterServer,
}

impl StrategyKind {
    const ALL: [Self; 7] = [
        Self::OneDevice,
        Self::Mirrored,
        Self::MultiWorker,
        Self::CentralStorage,
        Self::Mesh,
        Self::Pipeline,
        Self::ParameterServer,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::OneDevice => "one_device",
            Self::Mirrored => "mirrored",
            Self::MultiWorker => "multi_worker",
            Self::CentralStorage => "central_storage",
            Self::Mesh => "mesh",
            Self::Pipeline => "pipeline",
            Self::ParameterServer => "parameter_server",
        }
    }

    /// Its name, what it does, and its settings.
    const fn component(self) -> Component {
        let (doc, fields): (_, &[Field]) = match self {
            Self::OneDevice => ("trains on one device", &[DEVICES]),
            Self::Mirrored => (
                "a copy of the model on each device; each batch is divided among them and their gradients are added",
                &[DEVICES, REDUCTION, SHARES, VERIFY_EVERY],
            ),
            Self::MultiWorker => (
                "as `mirrored`, on the devices of every process of a cluster: `phalanx launch`, TF_CONFIG, Slurm, Kubernetes or MPI say which there are",
                &[DEVICES_OF_WORKER, REDUCTION, COMMUNICATION],
            ),
            Self::CentralStorage => (
                "one copy of the variables, on one device; all devices compute",
                &[DEVICES, PARAMETER_DEVICE, REDUCTION, SHARES],
            ),
            Self::Mesh => (
                "one model divided over the devices: batches over the axis `data`, variables as the `sharding` of their layers says",
                &[DEVICES, AXES],
            ),
            Self::Pipeline => (
                "one model in stages of consecutive layers, one stage on each device; batches pass through in micro-batches",
                &[DEVICES, STAGES, MICRO_BATCHES, STARTING_AT],
            ),
            Self::ParameterServer => (
                "variables on the parameter servers of a cluster, to which workers push gradients; `phalanx launch --ps` or TF_CONFIG say which there are",
                &[
                    DEVICES,
                    MODE,
                    STALENESS,
                    BACKUP_WORKERS,
                    SHARDS,
                    MIN_SHARD_BYTES,
                    MAX_SHARD_BYTES,
                    TABLE_BYTES,
                    OVERLAP,
                    WIRE,
                    CACHE_ROWS,
                    CACHE_STEPS,
                    GO_ON_WITHOUT_CHIEF,
                ],
            ),
        };
        Component {
            name: self.name(),
            doc,
            fields,
        }
    }
}

/// As they are written; `None` where nothing is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct StrategySettings {
    devices: Option<String>,
    parameter_device: Option<String>,
    reduction: Value,
    communication: Value,
    shares: Option<Vec<u32>>,
    verify_every: Option<u64>,
    axes: Option<BTreeMap<String, usize>>,
    stages: Option<usize>,
    micro_batches: Option<usize>,
    starting_at: Option<Vec<String>>,
    mode: Option<String>,
    staleness: Option<u64>,
    backup_workers: Option<usize>,
    shards: Option<usize>,
    min_shard_bytes: Option<usize>,
    max_shard_bytes: Option<usize>,
    table_bytes: Option<usize>,
    overlap: Option<bool>,
    wire: Option<WireFormat>,
    cache_rows: Option<usize>,
    cache_steps: Option<u64>,
    go_on_without_chief: Option<bool>,
}

/// One device when one is there, else all of them mirrored.
impl Default for NamedStrategy {
    fn default() -> Self {
        Self {
            kind: StrategyKind::Mirrored,
            devices: None,
            settings: StrategySettings::default(),
        }
    }
}

impl NamedStrategy {
    /// The names of strategies.
    pub const KINDS: [&'static str; 7] = {
        let [a, b, c, d, e, f, g] = StrategyKind::ALL;
        [
            a.name(),
            b.name(),
            c.name(),
            d.name(),
            e.name(),
            f.name(),
            g.name(),
        ]
    };

    /// The strategy of this name with these settings: `devices` (see [`DeviceChoice`]); of `mirrored` and
    /// `central_storage` `reduction` (see [`Reduction::from_config`]) and `shares` (a number for each replica); of
    /// `multi_worker` `reduction` and `communication` (see [`CommunicationOptions`](super::CommunicationOptions)); of
    /// `mirrored` `verify_every` (a number of steps); of `central_storage` `parameter_device`; of `mesh` `axes`, names
    /// with sizes (see [`Mesh`]; the last in the order of names is counted fastest); of `pipeline` `stages`,
    /// `micro_batches` (as many as stages by default) and `starting_at`; of `parameter_server` what [`ParameterServerOptions`] has.
    ///
    /// # Errors
    /// An unknown name or setting (naming the nearest), or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        let known = StrategyKind::ALL
            .into_iter()
            .find(|known| known.name() == kind);
        let known = known.ok_or_else(|| config::unknown_kind("strategy", kind, &Self::KINDS))?;
        let declared = known.component().fields;
        let given = fields.as_object().into_iter().flatten();
        for (name, _) in given.filter(|(name, _)| declared.iter().all(|own| own.name != *name)) {
            let others = StrategyKind::ALL
                .iter()
                .flat_map(|other| other.component().fields);
            if others.map(|field| field.name).any(|other| other == name) {
                return Err(Error::user(format!(
                    "{kind}: `{name}` does not apply to this strategy; leave it out"
                )));
            }
        }
        let declared: Vec<&Field> = declared.iter().collect();
        let settings = config::read_fields(kind, &StrategySettings::default(), &declared, fields)?;
        Reduction::from_config(&settings.reduction)?;
        CommunicationSettings::options(&settings.communication)?;
        if let Some(mesh) = settings.mesh() {
            let checked = mesh.check();
            checked.map_err(|why| Error::user(format!("{kind}: `axes`: {why}")))?;
        }
        if known == StrategyKind::ParameterServer {
            let wrong = |error: Error| Error::user(format!("{kind}: {error}"));
            settings.on_servers().map_err(wrong)?;
        }
        let devices = settings.devices.as_deref().map(str::parse);
        Ok(Self {
            kind: known,
            devices: devices.transpose()?,
            settings,
        })
    }

    /// The strategies with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        let mut defaults = config::write("strategy", &StrategySettings::default());
        defaults["reduction"] = Reduction::default().config();
        defaults["communication"] = CommunicationSettings::defaults();
        let all = StrategyKind::ALL.iter();
        all.map(|kind| Description::new(&kind.component(), &[], &defaults))
            .collect()
    }

    /// The same on these devices, whatever the settings say.
    #[must_use]
    pub fn on_devices(mut self, devices: DeviceChoice) -> Self {
        self.devices = Some(devices);
        self
    }

    /// The same in every process of a cluster: what is mirrored over the devices of one process is mirrored over the devices of all.
    ///
    /// # Errors
    /// When the strategy, or one of its settings, is for one process.
    pub fn in_cluster(mut self) -> Result<Self> {
        let reason = match self.kind {
            StrategyKind::ParameterServer => return Ok(self),
            StrategyKind::MultiWorker => None,
            StrategyKind::Mirrored if self.settings.shares.is_some() => Some("`shares`".to_owned()),
            StrategyKind::Mirrored if self.settings.verify_every.is_some() => {
                Some("`verify_every`".to_owned())
            }
            StrategyKind::Mirrored => None,
            other => Some(format!("the strategy `{}`", other.name())),
        };
        if let Some(reason) = reason {
            return Err(Error::user(format!(
                "{reason} is for one process, and the environment describes several workers; use `multi_worker`, or start one process"
            )));
        }
        self.kind = StrategyKind::MultiWorker;
        Ok(self)
    }

    /// Its name, as in `multi_worker`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The devices it is for, if it says so.
    #[must_use]
    pub const fn devices(&self) -> Option<&DeviceChoice> {
        self.devices.as_ref()
    }

    /// How long the other processes of a cluster wait for this one: for a worker until all have come, for a parameter server that is away.
    ///
    /// # Errors
    /// Settings that [`from_config`](Self::from_config) refuses.
    pub fn others_wait(&self, is_server: bool) -> Result<Duration> {
        Ok(match is_server {
            true => self.settings.on_servers()?.server_timeout,
            false => CommunicationSettings::options(&self.settings.communication)?.join_timeout,
        })
    }

    /// Starts the devices and what uses them.
    ///
    /// # Errors
    /// When the devices do not start (see [`Engine::new`]), one that is named is not there, or shares do not fit them.
    pub fn start(&self, options: EngineOptions) -> Result<Box<dyn Strategy>> {
        self.started(options, None)
    }

    /// The same, of which a parameter server says to its workers that its machine is about to end once a flag is set; see
    /// [`ParameterServerOptions::ending_when`].
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_ending_when(
        &self,
        options: EngineOptions,
        ending: &Arc<AtomicBool>,
    ) -> Result<Box<dyn Strategy>> {
        self.started(options, Some(ending))
    }
}

impl NamedStrategy {
    fn started(
        &self,
        options: EngineOptions,
        ending: Option<&Arc<AtomicBool>>,
    ) -> Result<Box<dyn Strategy>> {
        let options = match &self.devices {
            Some(devices) => devices.options(options),
            None => EngineOptions {
                cpu_devices: match self.kind {
                    StrategyKind::MultiWorker | StrategyKind::ParameterServer => {
                        devices_per_worker()?
                    }
                    _ => self.cpu_devices()?,
                }
                .unwrap_or(options.cpu_devices),
                ..options
            },
        };
        let engine = Engine::new(&options)?;
        let all = || Ok((0..engine.devices()).collect());
        let devices = self.devices.as_ref();
        let devices = devices.map_or_else(all, |devices| devices.of(&engine))?;
        let names: Vec<String> = devices.iter().map(|&d| engine.device_name(d)).collect();
        let idle = idle_warning(self.kind.name(), self.settings.places(), &names);
        idle.iter().for_each(|warning| (options.notice)(warning));
        Ok(match self.kind {
            StrategyKind::OneDevice if names.len() > 1 => {
                return Err(Error::user(format!(
                    "`one_device` trains on one device, and `devices` are {}; name one, or use `mirrored`",
                    names.join(", ")
                )));
            }
            StrategyKind::OneDevice => Box::new(OneDeviceStrategy::device(&engine, &names[0])?),
            StrategyKind::Mirrored => Box::new(self.settings.mirrored(&engine, &names)?),
            StrategyKind::MultiWorker => Box::new(
                MultiWorkerMirroredStrategy::from_env_on(
                    Placement::on(&engine, &devices)?,
                    &CommunicationSettings::options(&self.settings.communication)?,
                )?
                .reduction(Reduction::from_config(&self.settings.reduction)?),
            ),
            StrategyKind::ParameterServer => {
                let options = self.settings.on_servers()?;
                let options = ending
                    .into_iter()
                    .fold(options, ParameterServerOptions::ending_when);
                let placement = Placement::on(&engine, &devices)?;
                let worker = ParameterServerStrategy::from_env_on(placement, &options)?;
                Box::new(worker.ok_or_else(|| Error::Stopped("the job is over".into()))?)
            }
            StrategyKind::CentralStorage => {
                Box::new(self.settings.central(&engine, &names, &options)?)
            }
            StrategyKind::Mesh => Box::new(self.settings.meshed(&engine, &names)?),
            StrategyKind::Pipeline => Box::new(self.settings.pipeline(&engine, &names)?),
        })
    }

    /// How many parts the CPU is divided into for a mesh or a pipeline.
    fn cpu_devices(&self) -> Result<Option<usize>> {
        let places = self.settings.places();
        if let Some(places) = places.filter(|&places| places > MOST_CPU_DEVICES) {
            let name = self.kind.name();
            return Err(Error::user(format!(
                "{name}: it is for {places} devices, and the CPU can be divided into 1 to {MOST_CPU_DEVICES}; ask for fewer, or name other devices with `devices`, as in `gpu`"
            )));
        }
        Ok(places)
    }
}

impl StrategySettings {
    /// How workers and parameter servers work together.
    fn on_servers(&self) -> Result<ParameterServerOptions> {
        let given = [
            ("staleness", self.staleness.is_some(), "bounded_staleness"),
            ("backup_workers", self.backup_workers.is_some(), "sync"),
            ("cache_steps", self.cache_steps.is_some(), "async"),
        ];
        let mode = self.mode.as_deref().unwrap_or("async");
        if let Some((name, _, of)) = given.iter().find(|(_, given, of)| *given && *of != mode) {
            return Err(Error::user(format!(
                "`{name}` is of the mode `{of}`, and the mode is `{mode}`; leave it out, or change `mode`"
            )));
        }
        let mode = match mode {
            "async" => Mode::Async,
            "bounded_staleness" => Mode::BoundedStaleness {
                steps: self.staleness.unwrap_or(10),
            },
            "sync" => Mode::Sync {
                backup_workers: self.backup_workers.unwrap_or(0),
            },
            other => {
                return Err(Error::user(format!(
                    "`mode` must be `async`, `bounded_staleness` or `sync`, got `{other}`"
                )));
            }
        };
        let partitioner = match (self.min_shard_bytes, self.max_shard_bytes, self.shards) {
            (Some(_), Some(_), _) => {
                return Err(Error::user(
                    "`min_shard_bytes` and `max_shard_bytes` exclude each other; keep one",
                ));
            }
            (Some(min_shard_bytes), None, shards) => Partitioner::MinSize {
                min_shard_bytes,
                max_shards: shards.unwrap_or(1),
            },
            (None, Some(max_shard_bytes), max_shards) => Partitioner::MaxSize {
                max_shard_bytes,
                max_shards,
            },
            (None, None, Some(shards)) => Partitioner::FixedShards { shards },
            (None, None, None) => Partitioner::Whole,
        };
        let options = ParameterServerOptions::new()
            .mode(mode)
            .partitioner(partitioner);
        let options = self.exchanged(match self.table_bytes {
            Some(bytes) => options.table_bytes(bytes),
            None => options,
        });
        Ok(match self.go_on_without_chief {
            Some(true) => options.go_on_without_chief(),
            _ => options,
        })
    }

    /// Options with what this says of how values travel.
    fn exchanged(&self, options: ParameterServerOptions) -> ParameterServerOptions {
        let options = match self.overlap {
            Some(true) => options.overlap(),
            _ => options,
        };
        options
            .wire_dtype(self.wire.unwrap_or_default())
            .cache_steps(self.cache_steps.unwrap_or(0))
            .cache_rows(self.cache_rows.unwrap_or(0))
    }

    fn mesh(&self) -> Option<Mesh> {
        let axes = self.axes.as_ref()?.iter();
        Some(Mesh::new(axes.map(|(name, &size)| (name.as_str(), size))))
    }

    /// How many devices a mesh or a pipeline is for.
    fn places(&self) -> Option<usize> {
        self.mesh().map(|mesh| mesh.size()).or(self.stages)
    }

    /// As many of these devices as there are places.
    fn placed<'n>(&self, what: &str, names: &'n [String]) -> Result<&'n [String]> {
        let (places, there) = (self.places().unwrap_or(0), names.len());
        names.get(..places).ok_or_else(|| {
            Error::user(format!(
                "{what} is for {places} devices, and there are {there}: {}; name more with `devices`, as in `cpu:{places}`, or leave `devices` out to divide the CPU",
                names.join(", ")
            ))
        })
    }

    fn mirrored(&self, engine: &Engine, names: &[String]) -> Result<MirroredStrategy> {
        let strategy = MirroredStrategy::on(engine)
            .devices(names)?
            .reduction(Reduction::from_config(&self.reduction)?)
            .verify_every(self.verify_every.unwrap_or(0));
        match &self.shares {
            Some(shares) => strategy.shares(shares),
            None => Ok(strategy),
        }
    }

    fn central(
        &self,
        engine: &Engine,
        names: &[String],
        options: &EngineOptions,
    ) -> Result<CentralStorageStrategy> {
        let strategy = CentralStorageStrategy::on(engine)
            .compute_devices(names)?
            .reduction(Reduction::from_config(&self.reduction)?);
        let strategy = match self.parameter_device.as_deref() {
            None => strategy.usual_parameters(options)?,
            Some(name) => strategy.parameters_named(name, options)?,
        };
        match &self.shares {
            Some(shares) => strategy.shares(shares),
            None => Ok(strategy),
        }
    }

    fn meshed(&self, engine: &Engine, names: &[String]) -> Result<MeshStrategy> {
        let mesh = self.mesh().unwrap_or(Mesh { axes: Vec::new() });
        let names = self.placed(&mesh.to_string(), names)?;
        MeshStrategy::on(engine, &mesh)?.devices(names)
    }

    fn pipeline(&self, engine: &Engine, names: &[String]) -> Result<PipelineStrategy> {
        let stages = self.stages.unwrap_or(0);
        let names = self.placed(&format!("a pipeline of {stages} stages"), names)?;
        let micro_batches = self.micro_batches.unwrap_or(stages);
        let strategy = PipelineStrategy::on(engine, stages, micro_batches)?.devices(names)?;
        Ok(match &self.starting_at {
            Some(layers) => strategy.starting_at(layers.clone()),
            None => strategy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A kind, its settings as JSON, and what is said of them.
    const NONSENSE: [(&str, &str, &str); 10] = [
        (
            "mirored",
            "{}",
            "unknown strategy `mirored`; did you mean `mirrored`?",
        ),
        (
            "mirrored",
            r#"{"device": "cpu:2"}"#,
            "mirrored: unknown field `device`; did you mean `devices`?",
        ),
        (
            "mirrored",
            r#"{"devices": "disk:1"}"#,
            "devices `disk:1`: `disk:1` is no device",
        ),
        (
            "one_device",
            r#"{"shares": [1, 2]}"#,
            "one_device: `shares` does not apply to this strategy",
        ),
        (
            "mirrored",
            r#"{"parameter_device": "cpu:0"}"#,
            "mirrored: `parameter_device` does not apply",
        ),
        (
            "mirrored",
            r#"{"axes": {"data": 2}}"#,
            "mirrored: `axes` does not apply",
        ),
        (
            "pipeline",
            r#"{"micro_batches": 4}"#,
            "pipeline: field `stages` is missing",
        ),
        (
            "pipeline",
            r#"{"stages": 2, "micro_batches": 0}"#,
            "pipeline: `micro_batches` must be a whole number of at least 1, got 0",
        ),
        (
            "mesh",
            r#"{"axes": {"data": 0}}"#,
            "mesh: `axes` must be names with values, each a whole number of at least 1, got {\"data\":0}",
        ),
        (
            "mesh",
            r#"{"axes": {}}"#,
            "mesh: `axes`: a mesh has no axes",
        ),
    ];

    #[test]
    fn settings_that_make_no_sense_are_named() {
        for (kind, fields, expected) in NONSENSE {
            let fields = serde_json::from_str(fields).unwrap();
            let error = NamedStrategy::from_config(kind, &fields).unwrap_err();
            let found = error.to_string();
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn servers_keep_tables_by_their_rows_from_the_size_that_is_named() {
        let options = |fields| {
            let named = NamedStrategy::from_config("parameter_server", &fields).unwrap();
            format!("{:?}", named.settings.on_servers().unwrap())
        };
        assert!(options(json!({})).contains("table_bytes: 16777216"));
        assert!(options(json!({"table_bytes": 0})).contains("table_bytes: 0"));
        assert!(options(json!({})).contains("overlaps: false"));
        assert!(options(json!({"overlap": true})).contains("overlaps: true"));
    }

    #[test]
    fn others_wait_as_long_as_is_written() {
        let wait = |kind, fields, is_server| {
            let named = NamedStrategy::from_config(kind, &fields).unwrap();
            named.others_wait(is_server).unwrap().as_secs()
        };
        let short = json!({"communication": {"join_timeout": 2}});
        assert_eq!(wait("multi_worker", short, false), 2);
        assert_eq!(wait("multi_worker", json!({}), false), 300);
        assert_eq!(wait("parameter_server", json!({}), false), 300);
        assert_eq!(wait("parameter_server", json!({}), true), 60);
    }

    #[test]
    fn processes_train_on_the_devices_that_are_named() {
        let devices = json!({"devices": "cpu:1,cpu:2"});
        let named = NamedStrategy::from_config("multi_worker", &devices).unwrap();
        let strategy = named.start(EngineOptions::default()).unwrap();
        let line = strategy.placement().describe(8);
        let expected = "training on 2 replicas (cpu:1, cpu:2): global batch 8, 4 per replica";
        assert!(line.starts_with(expected), "{line}");
    }

    #[test]
    fn a_strategy_without_devices_divides_the_cpu_into_as_many_as_it_needs() {
        let start = |kind, fields| {
            let named = NamedStrategy::from_config(kind, &fields).unwrap();
            named.start(EngineOptions::default())
        };
        let line = |kind, fields| start(kind, fields).unwrap().placement().describe(8);
        assert_eq!(
            line("pipeline", json!({"stages": 2})),
            "training on 2 stages (cpu:0, cpu:1): batch 8, 2 micro-batches"
        );
        assert_eq!(
            line("mesh", json!({"axes": {"model": 2, "data": 1}})),
            "training on mesh data=1 model=2 (cpu:0, cpu:1): batch 8"
        );
        assert_eq!(
            line(
                "pipeline",
                json!({"stages": 2, "micro_batches": 4, "devices": "cpu:3"})
            ),
            "training on 2 stages (cpu:0, cpu:1): batch 8, 4 micro-batches"
        );
        for (kind, fields) in [
            ("pipeline", json!({"stages": 100_000})),
            ("mesh", json!({"axes": {"data": 100_000}})),
            (
                "mesh",
                json!({"axes": {"data": u32::MAX, "model": u32::MAX, "rows": 2}}),
            ),
        ] {
            let error = start(kind, fields).err().unwrap().to_string();
            assert!(error.contains("can be divided into 1 to 1024"), "{error}");
        }
        let error = start("mesh", json!({"axes": {"data": 4}, "devices": "cpu:2"}));
        let error = error.err().unwrap().to_string();
        assert!(
            error.contains("mesh data=4 is for 4 devices, and there are 2: cpu:0, cpu:1"),
            "{error}"
        );
    }
}
