//! The devices of a program, and how the model and its batches lie on them.

use std::sync::Arc;

use phalanx_graph::{HostTensor, Mesh, Prepared, Program, Shape, Sharding};
use phalanx_pjrt::Buffer;

use super::{BatchPartition, Layout, MeshLayout, ParameterDevice, Reduction, Stages, World};
use crate::engine::{CompileRequest, Compiled, Engine};
use crate::servers::Servers;
use crate::{Error, Result};

/// The devices that a strategy uses, as data: which devices compute, how the model lies on them, which rows of a batch each
/// gets, and how gradients are reduced.
///
/// Replica `i` computes on device `devices()[i]`. It has its own copy of the variables or, with a parameter device, gets
/// one for each step.
#[derive(Clone, Debug)]
pub struct Placement {
    engine: Engine,
    devices: Vec<usize>,
    layout: Layout,
    reduction: Reduction,
    shares: Option<Vec<u32>>,
    verify_every: Option<u64>,
    world: Option<Arc<World>>,
    servers: Option<Arc<Servers>>,
}

impl Placement {
    /// A replica on the first device of an engine.
    #[must_use]
    pub fn first(engine: &Engine) -> Self {
        Self::checked(engine, vec![0])
    }

    /// A replica on each device of an engine.
    #[must_use]
    pub fn all(engine: &Engine) -> Self {
        Self::checked(engine, (0..engine.devices()).collect())
    }

    /// A replica on each of these devices, given by their positions in the engine.
    ///
    /// # Errors
    /// When there is none, one is not in the engine, or is there twice.
    pub fn on(engine: &Engine, devices: &[usize]) -> Result<Self> {
        let names = devices.iter().map(|&device| engine.device_name(device));
        Ok(Self::checked(engine, super::select_devices(engine, names)?))
    }

    fn checked(engine: &Engine, devices: Vec<usize>) -> Self {
        Self {
            engine: engine.clone(),
            devices,
            layout: Layout::Replicated,
            reduction: Reduction::default(),
            shares: None,
            verify_every: None,
            world: None,
            servers: None,
        }
    }

    /// The same on other devices of the engine.
    ///
    /// # Errors
    /// As for [`on`](Self::on); when parts of batches were given for another number of devices.
    pub fn on_devices(self, devices: &[usize]) -> Result<Self> {
        let Self { devices, .. } = Self::on(&self.engine, devices)?;
        if let Some(shares) = &self.shares
            && shares.len() != devices.len()
        {
            return Err(Error::user(format!(
                "there are {} shares for {} replicas; name the devices before the shares",
                shares.len(),
                devices.len()
            )));
        }
        Ok(Self { devices, ..self })
    }

    /// With the variables on one parameter device, of this engine or another.
    #[must_use]
    pub fn with_parameters(mut self, engine: &Engine, device: usize) -> Self {
        self.layout = Layout::ParameterDevice(ParameterDevice {
            engine: engine.clone(),
            device,
        });
        self
    }

    /// With one model, sharded over the devices in the order of a mesh; batches are sharded over the axis `data`.
    ///
    /// # Errors
    /// When there are not as many devices as places in the mesh.
    pub(crate) fn on_mesh(mut self, mesh: &Mesh, data: Option<&str>) -> Result<Self> {
        let (places, devices) = (mesh.size(), self.devices.len());
        if places != devices {
            return Err(Error::user(format!(
                "{mesh} has {places} places, but {devices} devices are named; name one for each"
            )));
        }
        self.layout = Layout::Sharded(MeshLayout {
            mesh: mesh.clone(),
            data: data.map(str::to_owned),
        });
        Ok(self)
    }

    /// With this reduction of gradients.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// With shares of each batch in proportion to these numbers, one for each replica.
    ///
    /// # Errors
    /// When there is not one for each replica, or all are 0.
    pub fn with_shares(mut self, shares: &[u32]) -> Result<Self> {
        if shares.len() != self.local_replicas() {
            return Err(Error::user(format!(
                "there are {} shares for {} replicas; give one for each",
                shares.len(),
                self.local_replicas()
            )));
        }
        BatchPartition::weighted(0, shares)?;
        let all_equal = shares.iter().all(|share| *share == shares[0]);
        self.shares = (!all_equal).then(|| shares.to_vec());
        Ok(self)
    }

    /// Compares the replicas' variables every `steps` steps; 0 is never.
    #[must_use]
    pub const fn with_verification(mut self, steps: u64) -> Self {
        self.verify_every = if steps == 0 { None } else { Some(steps) };
        self
    }

    /// The number of copies of the model that train together, in all processes.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.local_replicas() * self.workers()
    }

    /// The number of processes that train together.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.world.as_ref().map_or(1, |world| world.workers())
    }

    /// The number of copies of the model whose gradients made an update together when the training was begun: what follows from it stays
    /// as processes come and go.
    pub(crate) fn planned_replicas(&self) -> usize {
        match &self.world {
            Some(world) => self.local_replicas() * world.planned_workers(),
            None => self.replicas_in_sync(),
        }
    }

    /// The processes that train together, where there are several.
    pub(crate) const fn world(&self) -> Option<&Arc<World>> {
        self.world.as_ref()
    }

    /// Tells the other processes of an error that they do not have, where there are others.
    pub(crate) fn or_fail_together<T>(&self, result: Result<T>) -> Result<T> {
        match &self.world {
            Some(world) => world.or_fail(result),
            None => result,
        }
    }

    /// With the replicas of other processes beside this one's.
    pub(crate) fn in_world(self, world: Arc<World>) -> Self {
        Self {
            world: Some(world),
            ..self
        }
    }

    /// The parameter servers that hold the variables, where there are some.
    pub(crate) const fn servers(&self) -> Option<&Arc<Servers>> {
        self.servers.as_ref()
    }

    /// With the variables on parameter servers.
    pub(crate) fn with_servers(self, servers: Arc<Servers>) -> Self {
        Self {
            servers: Some(servers),
            ..self
        }
    }

    /// Whether this process writes files and shows progress: the first of several, or the only one. Another process becomes the first when
    /// that one is lost for good.
    #[must_use]
    pub fn is_chief(&self) -> bool {
        let of_servers = self
            .servers
            .as_ref()
            .is_none_or(|servers| servers.is_chief());
        of_servers && self.world.as_ref().is_none_or(|world| world.is_chief())
    }

    /// The number of copies of the model in this process.
    #[must_use]
    pub const fn local_replicas(&self) -> usize {
        match self.layout {
            Layout::Replicated | Layout::ParameterDevice(_) => self.devices.len(),
            Layout::Sharded(_) | Layout::Pipelined(_) => 1,
        }
    }

    /// How the model lies on the devices.
    pub(crate) const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// With one model, cut into a stage for each device.
    pub(crate) fn in_stages(mut self, micro_batches: usize) -> Self {
        self.layout = Layout::Pipelined(Stages {
            starts: None,
            micro_batches,
        });
        self
    }

    /// With these layers as the first of each stage but the first.
    pub(crate) fn with_stage_starts(mut self, starts: Vec<String>) -> Self {
        if let Layout::Pipelined(stages) = &mut self.layout {
            stages.starts = Some(starts);
        }
        self
    }

    /// The engine of the replicas.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The device of each replica, by its position in the engine.
    #[must_use]
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Whether both use the same devices in the same way, with the same other processes.
    pub(crate) fn has_same_devices(&self, other: &Self) -> bool {
        let is_same_world = match (&self.world, &other.world) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        self.engine.is_same(&other.engine)
            && self.devices == other.devices
            && self.layout.is_same(&other.layout)
            && is_same_world
    }

    /// The name of a replica's device, as in `cpu:0`.
    #[must_use]
    pub fn device_name(&self, replica: usize) -> String {
        self.engine.device_name(self.devices[replica])
    }

    /// Engine and device that hold the variables, where they are not on the devices of the replicas.
    #[must_use]
    pub const fn parameter_device(&self) -> Option<(&Engine, usize)> {
        match &self.layout {
            Layout::ParameterDevice(ParameterDevice { engine, device }) => Some((engine, *device)),
            Layout::Replicated | Layout::Sharded(_) | Layout::Pipelined(_) => None,
        }
    }

    /// How gradients are added.
    #[must_use]
    pub const fn reduction(&self) -> &Reduction {
        &self.reduction
    }

    /// After how many steps the replicas' variables are compared, if ever.
    #[must_use]
    pub const fn verify_every(&self) -> Option<u64> {
        self.verify_every
    }

    /// How a batch of `rows` rows is divided over the replicas, when a full batch has `full`.
    ///
    /// A batch that divides evenly has arrays without padding. Any other is padded to the parts of a full batch, so that
    /// training needs few programs. With shares, a full batch has a program with a branch for each size of a part.
    #[must_use]
    pub fn partition(&self, rows: usize, full: usize) -> BatchPartition {
        let partition = self.exact_partition(rows);
        if partition.is_even() {
            return partition;
        }
        self.padded_partition(rows, full)
    }

    /// As [`partition`](Self::partition), padded to the parts of a full batch whatever the number of rows.
    #[must_use]
    pub fn padded_partition(&self, rows: usize, full: usize) -> BatchPartition {
        let partition = self.exact_partition(rows);
        match self.shares {
            Some(_) if rows == full => partition.sized(),
            _ => partition.padded_to(self.exact_partition(full).padded_rows()),
        }
    }

    /// How this process' `rows` rows of a global batch are divided over its replicas, when a full batch has `full` rows in all
    /// processes. Without `is_even` every replica of every process has arrays of as many rows as the largest part of a full batch.
    pub(crate) fn worker_partition(
        &self,
        rows: usize,
        full: usize,
        is_even: bool,
    ) -> BatchPartition {
        let partition = BatchPartition::equal(rows, self.local_replicas());
        match is_even {
            true => partition,
            false => partition.padded_to(full.div_ceil(self.replicas())),
        }
    }

    /// Whether replicas have uneven shares.
    pub(crate) const fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    fn exact_partition(&self, rows: usize) -> BatchPartition {
        let parts = match &self.layout {
            Layout::Replicated | Layout::ParameterDevice(_) => self.devices.len(),
            Layout::Sharded(mesh) => {
                let padded = rows.next_multiple_of(mesh.data_parts());
                return BatchPartition::equal(rows, 1).padded_to(padded);
            }
            Layout::Pipelined(stages) => stages.micro_batches,
        };
        match &self.shares {
            None => BatchPartition::equal(rows, parts),
            // Checked when they were given.
            Some(shares) => BatchPartition::weighted(rows, shares)
                .unwrap_or_else(|_| BatchPartition::equal(rows, self.local_replicas())),
        }
    }

    /// Compiles a program for the devices that compute.
    ///
    /// # Errors
    /// As for [`Engine::compile`].
    pub fn compile(&self, name: &str, program: &Program) -> Result<Compiled> {
        let request = CompileRequest::new(name, program).on(&self.devices);
        self.engine.compile(match &self.world {
            Some(world) => request.with_world_exchange(world.slot()),
            None => request,
        })
    }

    /// A program divided by how often its parts must run, where leading parameters change seldom; nothing where it would not gain.
    ///
    /// # Errors
    /// As for [`Engine::compile`].
    pub(crate) fn prepared(&self, program: &Program, constant: usize) -> Result<Option<Prepared>> {
        self.engine.prepared(program, constant)
    }

    /// Compiles a program for the parameter device.
    ///
    /// # Errors
    /// As for [`Engine::compile`].
    pub(crate) fn compile_apply(&self, program: &Program) -> Result<Compiled> {
        let (engine, device) = self.home();
        engine.compile(CompileRequest::new("apply_step", program).on(&[device]))
    }

    /// The engine of the variables.
    pub(crate) fn parameter_engine(&self) -> &Engine {
        self.home().0
    }

    /// Puts a tensor where the variables are: on each replica, in shards over the mesh, on the parameter device, or on the
    /// device of a stage.
    pub(crate) fn place_parameter(
        &self,
        tensor: &HostTensor,
        sharding: &Sharding,
        stage: usize,
    ) -> Result<Vec<Buffer>> {
        self.place_by(Engine::put, tensor, sharding, stage)
    }

    /// The same for what training alone uses, so that the first step will replace it: the tensor's memory is not kept until then.
    pub(crate) fn place_slot(
        &self,
        tensor: &HostTensor,
        sharding: &Sharding,
        stage: usize,
    ) -> Result<Vec<Buffer>> {
        self.place_by(Engine::put_copy, tensor, sharding, stage)
    }

    fn place_by(
        &self,
        put: impl Fn(&Engine, usize, &HostTensor) -> Result<Buffer>,
        tensor: &HostTensor,
        sharding: &Sharding,
        stage: usize,
    ) -> Result<Vec<Buffer>> {
        let on = |device: usize| put(&self.engine, device, tensor);
        match &self.layout {
            Layout::Sharded(_) => self.divide(tensor, sharding),
            Layout::Replicated => self.devices.iter().copied().map(on).collect(),
            Layout::ParameterDevice(ParameterDevice { engine, device }) => {
                Ok(vec![put(engine, *device, tensor)?])
            }
            Layout::Pipelined(_) => Ok(vec![on(self.devices[stage])?]),
        }
    }

    /// Puts a tensor on each device: all of it, or its shard.
    pub(crate) fn divide(&self, tensor: &HostTensor, sharding: &Sharding) -> Result<Vec<Buffer>> {
        match &self.layout {
            Layout::Sharded(MeshLayout { mesh, .. }) => {
                self.engine.put_parts(&self.devices, mesh, sharding, tensor)
            }
            _ => self.replicate(tensor),
        }
    }

    /// Reads a tensor from where [`place_parameter`](Self::place_parameter) puts it.
    pub(crate) fn read_parameter(
        &self,
        arrays: &[&Buffer],
        shape: &Shape,
        sharding: &Sharding,
    ) -> Result<HostTensor> {
        let engine = self.parameter_engine();
        match &self.layout {
            Layout::Sharded(MeshLayout { mesh, .. }) => {
                engine.get_parts(arrays, mesh, sharding, shape)
            }
            _ => engine.get(arrays[0], shape),
        }
    }

    /// Copies an array from the parameter device to a replica.
    pub(crate) fn to_replica(
        &self,
        array: &Buffer,
        shape: &Shape,
        replica: usize,
    ) -> Result<Buffer> {
        let home = self.parameter_engine();
        self.engine.copy(home, array, shape, self.devices[replica])
    }

    /// Copies arrays from the first replica to the parameter device.
    pub(crate) fn to_parameters(&self, arrays: &[Buffer], shapes: &[Shape]) -> Result<Vec<Buffer>> {
        let (home, device) = self.home();
        let copied = arrays.iter().zip(shapes);
        copied
            .map(|(array, shape)| home.copy(&self.engine, array, shape, device))
            .collect()
    }

    /// The parameter device, or the device of the first replica where there is none.
    fn home(&self) -> (&Engine, usize) {
        self.parameter_device()
            .unwrap_or((&self.engine, self.devices[0]))
    }

    /// Reads an output of the model: the part of a replica, from the buffers of all devices.
    pub(crate) fn read_output(
        &self,
        parts: &[&Buffer],
        replica: usize,
        shape: &Shape,
    ) -> Result<HostTensor> {
        match &self.layout {
            Layout::Sharded(layout) => {
                let sharding = layout.of_batch(shape.rank());
                self.engine.get_parts(parts, &layout.mesh, &sharding, shape)
            }
            _ => self.engine.get(parts[replica], shape),
        }
    }

    /// Copies a tensor to each device.
    ///
    /// # Errors
    /// As for [`Engine::put`].
    pub fn replicate(&self, tensor: &HostTensor) -> Result<Vec<Buffer>> {
        let devices = self.devices.iter();
        devices
            .map(|&device| self.engine.put(device, tensor))
            .collect()
    }

    /// Puts each of some tensors, one for each replica, on its device.
    ///
    /// # Errors
    /// As for [`Engine::put`].
    pub fn scatter(&self, tensors: &[HostTensor]) -> Result<Vec<Buffer>> {
        let placed = tensors.iter().zip(&self.devices);
        placed
            .map(|(tensor, &device)| self.engine.put(device, tensor))
            .collect()
    }

    /// What the user reads when training starts: devices, replicas, how batches of `rows` are divided, the reduction.
    #[must_use]
    pub fn describe(&self, rows: usize) -> String {
        let names = abbreviated(self.devices.len(), |r| self.device_name(r));
        let on = match (&self.layout, self.devices.len()) {
            (Layout::Pipelined(_), stages) => format!("{stages} stages ({names})"),
            (Layout::Sharded(MeshLayout { mesh, .. }), _) => format!("{mesh} ({names})"),
            (_, 1) => names,
            (_, replicas) => format!("{replicas} replicas ({names})"),
        };
        let partition = self.partition(rows, rows);
        let counts: Vec<usize> = (0..partition.replicas())
            .map(|r| partition.rows(r))
            .collect();
        let batch = match (&counts[..], partition.is_even()) {
            _ if matches!(self.layout, Layout::Pipelined(_)) => {
                format!("batch {rows}, {} micro-batches", counts.len())
            }
            ([_], _) => format!("batch {rows}"),
            (_, true) => format!(
                "global batch {rows}, {} per replica",
                partition.padded_rows()
            ),
            (_, false) => {
                let counts = abbreviated(counts.len(), |r| counts[r].to_string());
                format!("global batch {rows}, [{counts}] per replica")
            }
        };
        let (on, batch) = match self.workers() {
            1 => (on, batch),
            workers => (
                format!("{workers} workers, each on {on}"),
                format!("global batch {rows}"),
            ),
        };
        let on = match &self.servers {
            Some(servers) => format!("{}, each on {on}", servers.describe()),
            None => on,
        };
        let mut line = format!("training on {on}: {batch}");
        if self.replicas() > 1 {
            line = format!(
                "{line}; gradients by {}",
                self.reduction.describe(self.workers())
            );
        }
        if let Some((engine, device)) = self.parameter_device() {
            line = format!("{line}; variables on {}", engine.device_name(device));
        }
        line
    }

    /// What the user should know about replicas that cannot help with batches of `rows` rows on this machine.
    pub(crate) fn idle_replicas_warning(&self, rows: usize) -> Option<String> {
        let replicas = self.local_replicas();
        let partition = self.exact_partition(rows / self.workers());
        let idle = (0..partition.replicas()).filter(|&part| partition.rows(part) == 0);
        let idle = idle.count();
        if idle > 0 && replicas > 1 {
            return Some(format!(
                "{idle} of {replicas} replicas get no example of a batch of {rows} rows, and compute for nothing; use fewer devices, or larger batches"
            ));
        }
        let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        if self.engine.platform_name() == "cpu" && replicas > cores {
            return Some(format!(
                "{replicas} replicas share {cores} processor cores, which takes longer than {cores} replicas do; use `cpu:{cores}` or fewer"
            ));
        }
        None
    }
}

/// A list of names that stays short however many there are: the first, and the last.
pub(crate) fn abbreviated(count: usize, name: impl Fn(usize) -> String) -> String {
    const MOST: usize = 8;
    if count <= MOST {
        return (0..count).map(name).collect::<Vec<_>>().join(", ");
    }
    let first: Vec<String> = (0..MOST - 2).map(&name).collect();
    format!("{}, .., {}", first.join(", "), name(count - 1))
}
