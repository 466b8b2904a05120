//! Clients and their devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::PjrtError;
use crate::key_values::ClientGroup;
use crate::look::Look;
use crate::plugin::{Api, Attribute, Plugin, read_attributes, slice, text};
use crate::sys::{self, Args};

/// A plugin at work: its devices, its threads, its memory.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<ClientInner>);

pub(crate) struct ClientInner {
    pub(crate) api: Api,
    pub(crate) raw: *mut sys::Client,
    pub(crate) plugin: Plugin,
    platform: String,
    version: String,
    process_index: i32,
    devices: Vec<Device>,
    pub(crate) look: Look,
    /// What the plugin calls back.
    _group: Option<Box<ClientGroup>>,
}

// SAFETY: a PJRT client may be used from any thread.
unsafe impl Send for ClientInner {}
// SAFETY: as above.
unsafe impl Sync for ClientInner {}

impl Drop for ClientInner {
    fn drop(&mut self) {
        // SAFETY: buffers, executables and events hold the client alive, so nothing uses it any more.
        unsafe {
            self.api.destroy(sys::ClientDestroy {
                client: self.raw,
                ..Args::empty()
            });
        };
    }
}

/// Value of a client option; the plugin checks the type (a boolean is not an integer).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OptionValue {
    /// A string.
    Text(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

/// One addressable device of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Device {
    /// The id that a device assignment names, unique over all processes.
    pub id: i64,
    /// The process that owns the device.
    pub process_index: i32,
    /// Number of the device on its machine, -1 where the plugin has none.
    pub local_hardware_id: i32,
    /// Model of the device, such as `cpu`.
    pub kind: String,
    /// What the plugin says of the device; empty on CPU.
    pub attributes: BTreeMap<String, Attribute>,
    raw: *mut sys::Device,
}

// SAFETY: the pointer is that of a device, which lives as long as its client and may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Memory of a device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes in use now.
    pub in_use: i64,
    /// Most bytes ever in use.
    pub peak: Option<i64>,
    /// Bytes the plugin may use.
    pub limit: Option<i64>,
}

impl Client {
    /// Starts the plugin's devices with named options, such as `("cpu_device_count", OptionValue::Int(2))`.
    ///
    /// # Errors
    /// The plugin's own; an unknown option or one of the wrong type is `InvalidArgument`.
    pub fn new(plugin: &Plugin, options: &[(&str, OptionValue)]) -> Result<Self, PjrtError> {
        Self::start(plugin, options, None)
    }

    /// As [`new`](Self::new), for one of several processes whose devices a program uses together: plugins for GPUs, which find each
    /// other, and NCCL's peers, by the values that the group keeps. All processes call this at the same time.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and where another process does not come.
    pub fn in_group(
        plugin: &Plugin,
        options: &[(&str, OptionValue)],
        group: ClientGroup,
    ) -> Result<Self, PjrtError> {
        let number = |number: usize| OptionValue::Int(number as i64);
        let mut options = options.to_vec();
        options.push(("node_id", number(group.node)));
        options.push(("num_nodes", number(group.nodes)));
        Self::start(plugin, &options, Some(Box::new(group)))
    }

    fn start(
        plugin: &Plugin,
        options: &[(&str, OptionValue)],
        group: Option<Box<ClientGroup>>,
    ) -> Result<Self, PjrtError> {
        let options: Vec<sys::NamedValue> = options.iter().map(named_value).collect();
        let mut args = sys::ClientCreate {
            create_options: options.as_ptr(),
            num_options: options.len(),
            ..Args::empty()
        };
        if let Some(group) = &group {
            group.fill_in(&mut args);
        }
        let api = plugin.api();
        // SAFETY: the options live over the call, the group as long as the client.
        unsafe { api.call(&mut args)? };
        let mut inner = ClientInner {
            api,
            raw: args.client,
            plugin: plugin.clone(),
            platform: String::new(),
            version: String::new(),
            process_index: 0,
            devices: Vec::new(),
            look: Look::new(),
            _group: group,
        };
        inner.describe()?;
        Ok(Self(Arc::new(inner)))
    }

    /// Name of the platform, such as `cpu` or `cuda`.
    #[must_use]
    pub fn platform(&self) -> &str {
        &self.0.platform
    }

    /// Version of the platform, in the plugin's words.
    #[must_use]
    pub fn platform_version(&self) -> &str {
        &self.0.version
    }

    /// Number of this process among those that share the devices.
    #[must_use]
    pub fn process_index(&self) -> i32 {
        self.0.process_index
    }

    /// The devices of this process; functions that take a device take an index into this list.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// The plugin this client runs on.
    #[must_use]
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// Memory of a device, where the plugin tells it (the CPU plugin does not: `Unimplemented`).
    ///
    /// # Errors
    /// `device` is out of range, or the plugin's own.
    pub fn memory_stats(&self, device: usize) -> Result<MemoryStats, PjrtError> {
        let device = self.0.device(device, "PJRT_Device_MemoryStats")?;
        let mut args = sys::DeviceMemoryStats {
            device,
            ..Args::empty()
        };
        // SAFETY: the device is one of this client.
        unsafe { self.0.api.call(&mut args)? };
        Ok(MemoryStats {
            in_use: args.bytes_in_use,
            peak: args
                .peak_bytes_in_use_is_set
                .then_some(args.peak_bytes_in_use),
            limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
        })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("platform", &self.0.platform)
            .field("devices", &self.0.devices.len())
            .finish()
    }
}

impl ClientInner {
    /// The C device at an index of `devices()`.
    pub(crate) fn device(
        &self,
        index: usize,
        call: &'static str,
    ) -> Result<*mut sys::Device, PjrtError> {
        self.devices
            .get(index)
            .map(|device| device.raw)
            .ok_or_else(|| {
                PjrtError::invalid(
                    call,
                    format!(
                        "device {index} does not exist: this client has {} devices, 0 to {}",
                        self.devices.len(),
                        self.devices.len().saturating_sub(1)
                    ),
                )
            })
    }

    /// Whether device memory is row-major host memory, so that it can be read in place.
    pub(crate) fn is_host(&self) -> bool {
        self.platform == "cpu"
    }

    /// The index in `devices()` of a C device.
    pub(crate) fn device_index(&self, raw: *mut sys::Device) -> Option<usize> {
        self.devices.iter().position(|device| device.raw == raw)
    }

    fn describe(&mut self) -> Result<(), PjrtError> {
        let client = self.raw;
        let mut name = sys::ClientPlatformName {
            client,
            ..Args::empty()
        };
        let mut version = sys::ClientPlatformVersion {
            client,
            ..Args::empty()
        };
        let mut index = sys::ClientProcessIndex {
            client,
            ..Args::empty()
        };
        let mut devices = sys::ClientAddressableDevices {
            client,
            ..Args::empty()
        };
        // SAFETY: the client is live; the strings and the list live as long as it does.
        unsafe {
            self.api.call(&mut name)?;
            self.api.call(&mut version)?;
            self.api.call(&mut index)?;
            self.api.call(&mut devices)?;
            self.platform = text(name.platform_name, name.platform_name_size);
            self.version = text(version.platform_version, version.platform_version_size);
            self.process_index = index.process_index;
            self.devices = slice(devices.devices, devices.num_devices)
                .iter()
                .map(|raw| describe_device(self.api, *raw))
                .collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

/// # Safety
/// `raw` is a live device of `api`.
unsafe fn describe_device(api: Api, raw: *mut sys::Device) -> Result<Device, PjrtError> {
    // SAFETY: the device is live, its description lives as long, and so do the strings and attributes of that.
    unsafe {
        let mut get = sys::DeviceGetDescription {
            device: raw,
            ..Args::empty()
        };
        api.call(&mut get)?;
        let description = get.description;
        let mut id = sys::DescriptionId {
            description,
            ..Args::empty()
        };
        let mut process = sys::DescriptionProcessIndex {
            description,
            ..Args::empty()
        };
        let mut kind = sys::DescriptionKind {
            description,
            ..Args::empty()
        };
        let mut attributes = sys::DescriptionAttributes {
            description,
            ..Args::empty()
        };
        let mut local = sys::DeviceLocalHardwareId {
            device: raw,
            local_hardware_id: -1,
            ..Args::empty()
        };
        api.call(&mut id)?;
        api.call(&mut process)?;
        api.call(&mut kind)?;
        api.call(&mut attributes)?;
        api.call(&mut local)?;
        Ok(Device {
            id: i64::from(id.id),
            process_index: process.process_index,
            local_hardware_id: local.local_hardware_id,
            kind: text(kind.device_kind, kind.device_kind_size),
            attributes: read_attributes(attributes.attributes, attributes.num_attributes),
            raw,
        })
    }
}

/// The C form of an option; it borrows the name and the value.
fn named_value((name, value): &(&str, OptionValue)) -> sys::NamedValue {
    let (kind, value, value_size) = match value {
        OptionValue::Text(text) => (0, text.as_ptr() as u64, text.len()),
        OptionValue::Int(value) => (1, value.cast_unsigned(), 1),
        OptionValue::Ints(values) => (2, values.as_ptr() as u64, values.len()),
        OptionValue::Float(value) => (3, u64::from(value.to_bits()), 1),
        OptionValue::Bool(value) => (4, u64::from(*value), 1),
    };
    sys::NamedValue {
        struct_size: size_of::<sys::NamedValue>(),
        extension_start: std::ptr::null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        kind,
        value,
        value_size,
    }
}
