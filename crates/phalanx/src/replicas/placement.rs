//! Where the replicas of a program run, and what they need for it.

use phalanx_graph::{HostTensor, Mesh, Program, Shape, Sharding};
use phalanx_pjrt::Buffer;

use super::{BatchPartition, Layout, MeshLayout, ParameterDevice, Reduction, Stages};
use crate::engine::{CompileRequest, Compiled, Engine};
use crate::{Error, Result};

/// Where the replicas of a program run: the answers of a strategy as data.
///
/// Replica `i` computes on device `devices()[i]`, from a copy of the variables of its own or, with a parameter device,
/// from one that is brought there for each step.
#[derive(Clone, Debug)]
pub struct Placement {
    engine: Engine,
    devices: Vec<usize>,
    layout: Layout,
    reduction: Reduction,
    shares: Option<Vec<u32>>,
    verify_every: Option<u64>,
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

    /// A replica on each of these devices of an engine, by their positions in it.
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

    /// With the variables on one device alone, of this engine or another.
    #[must_use]
    pub fn with_parameters(mut self, engine: &Engine, device: usize) -> Self {
        self.layout = Layout::ParameterDevice(ParameterDevice {
            engine: engine.clone(),
            device,
        });
        self
    }

    /// With one replica, divided among the devices in the order of a mesh; batches are cut over the axis `data`.
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

    /// With this way of adding the gradients of the replicas.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// With parts of each batch in proportion to these numbers.
    ///
    /// # Errors
    /// When there is not one for each replica, or all are 0.
    pub fn with_shares(mut self, shares: &[u32]) -> Result<Self> {
        if shares.len() != self.replicas() {
            return Err(Error::user(format!(
                "there are {} shares for {} replicas; give one for each",
                shares.len(),
                self.replicas()
            )));
        }
        BatchPartition::weighted(0, shares)?;
        let all_equal = shares.iter().all(|share| *share == shares[0]);
        self.shares = (!all_equal).then(|| shares.to_vec());
        Ok(self)
    }

    /// With a comparison of the replicas' variables after every so many steps.
    #[must_use]
    pub const fn with_verification(mut self, steps: u64) -> Self {
        self.verify_every = if steps == 0 { None } else { Some(steps) };
        self
    }

    /// Copies of the model that train together.
    #[must_use]
    pub const fn replicas(&self) -> usize {
        match self.layout {
            Layout::Replicated | Layout::ParameterDevice(_) => self.devices.len(),
            Layout::Sharded(_) | Layout::Pipelined(_) => 1,
        }
    }

    /// How the model lies on the devices.
    pub(crate) const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// With one replica, in a stage on each device.
    pub(crate) fn in_stages(mut self, micro_batches: usize) -> Self {
        self.layout = Layout::Pipelined(Stages {
            starts: None,
            micro_batches,
        });
        self
    }

    /// With these layers as the first of the stages.
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

    /// Whether both have their replicas and variables on the same devices.
    pub(crate) fn has_same_devices(&self, other: &Self) -> bool {
        self.engine.is_same(&other.engine)
            && self.devices == other.devices
            && self.layout.is_same(&other.layout)
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

    /// Which rows of a batch of `rows` are whose, when a full batch has `full`.
    ///
    /// Parts that are all examples have arrays of their own size; others those of a full batch, so that a training
    /// needs few programs. With shares a full batch has a program for parts of its sizes.
    #[must_use]
    pub fn partition(&self, rows: usize, full: usize) -> BatchPartition {
        let partition = self.exact_partition(rows);
        if partition.is_even() {
            return partition;
        }
        self.padded_partition(rows, full)
    }

    /// As [`partition`](Self::partition), in arrays of a full batch's size whatever the number of rows.
    #[must_use]
    pub fn padded_partition(&self, rows: usize, full: usize) -> BatchPartition {
        let partition = self.exact_partition(rows);
        match self.shares {
            Some(_) if rows == full => partition.sized(),
            _ => partition.padded_to(self.exact_partition(full).padded_rows()),
        }
    }

    /// Whether parts are in proportion to unequal shares.
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
                .unwrap_or_else(|_| BatchPartition::equal(rows, self.replicas())),
        }
    }

    /// Compiles a program of as many replicas for their devices.
    ///
    /// # Errors
    /// As for [`Engine::compile`].
    pub fn compile(&self, name: &str, program: &Program) -> Result<Compiled> {
        let request = CompileRequest::new(name, program).on(&self.devices);
        self.engine.compile(request)
    }

    /// Compiles a program of one replica for the device of the variables.
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

    /// A tensor wherever the variables are: on the device of each replica, on the one of their own, in parts, or on that
    /// of a stage.
    pub(crate) fn place_parameter(
        &self,
        tensor: &HostTensor,
        sharding: &Sharding,
        stage: usize,
    ) -> Result<Vec<Buffer>> {
        match &self.layout {
            Layout::Replicated | Layout::Sharded(_) => self.divide(tensor, sharding),
            Layout::ParameterDevice(ParameterDevice { engine, device }) => {
                Ok(vec![engine.put(*device, tensor)?])
            }
            Layout::Pipelined(_) => Ok(vec![self.engine.put(self.devices[stage], tensor)?]),
        }
    }

    /// A tensor on each device: whole, or its part.
    pub(crate) fn divide(&self, tensor: &HostTensor, sharding: &Sharding) -> Result<Vec<Buffer>> {
        match &self.layout {
            Layout::Sharded(MeshLayout { mesh, .. }) => {
                self.engine.put_parts(&self.devices, mesh, sharding, tensor)
            }
            _ => self.replicate(tensor),
        }
    }

    /// A tensor of the variables' devices, from what all of them have.
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

    /// A copy of an array of the variables' device on that of a replica.
    pub(crate) fn to_replica(
        &self,
        array: &Buffer,
        shape: &Shape,
        replica: usize,
    ) -> Result<Buffer> {
        let home = self.parameter_engine();
        self.engine.copy(home, array, shape, self.devices[replica])
    }

    /// Copies of arrays of the first replica's device on that of the variables.
    pub(crate) fn to_parameters(&self, arrays: &[Buffer], shapes: &[Shape]) -> Result<Vec<Buffer>> {
        let (home, device) = self.home();
        let copied = arrays.iter().zip(shapes);
        copied
            .map(|(array, shape)| home.copy(&self.engine, array, shape, device))
            .collect()
    }

    /// Where the variables are, or those of the first replica.
    fn home(&self) -> (&Engine, usize) {
        self.parameter_device()
            .unwrap_or((&self.engine, self.devices[0]))
    }

    /// An output of the model that a replica has, from those of all devices.
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

    /// A tensor on the device of each replica.
    ///
    /// # Errors
    /// As for [`Engine::put`].
    pub fn replicate(&self, tensor: &HostTensor) -> Result<Vec<Buffer>> {
        let devices = self.devices.iter();
        devices
            .map(|&device| self.engine.put(device, tensor))
            .collect()
    }

    /// Tensors, one for each replica, on its device.
    ///
    /// # Errors
    /// As for [`Engine::put`].
    pub fn scatter(&self, tensors: &[HostTensor]) -> Result<Vec<Buffer>> {
        let placed = tensors.iter().zip(&self.devices);
        placed
            .map(|(tensor, &device)| self.engine.put(device, tensor))
            .collect()
    }

    /// What the user reads when a training starts: devices, replicas, how batches of `rows` are cut, the reduction.
    #[must_use]
    pub fn describe(&self, rows: usize) -> String {
        let names: Vec<String> = (0..self.devices.len())
            .map(|r| self.device_name(r))
            .collect();
        let on = match (&self.layout, self.devices.len()) {
            (Layout::Pipelined(_), stages) => format!("{stages} stages ({})", names.join(", ")),
            (Layout::Sharded(MeshLayout { mesh, .. }), _) => {
                format!("{mesh} ({})", names.join(", "))
            }
            (_, 1) => names[0].clone(),
            (_, replicas) => format!("{replicas} replicas ({})", names.join(", ")),
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
            (_, false) => format!("global batch {rows}, {counts:?} per replica"),
        };
        let mut line = format!("training on {on}: {batch}");
        if self.replicas() > 1 {
            line = format!("{line}; gradients by {}", self.reduction.describe());
        }
        if let Some((engine, device)) = self.parameter_device() {
            line = format!("{line}; variables on {}", engine.device_name(device));
        }
        line
    }
}
