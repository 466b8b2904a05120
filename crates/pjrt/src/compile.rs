//! Compilation, and the protobuf message of its options, encoded by hand.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::error::PjrtError;
use crate::executable::Executable;
use crate::host_memory::give_back_unused;
use crate::sys::{self, Args};

/// Bytes of scratch from which a program's first run would make the process larger by what its compilation has left; smaller programs come
/// in numbers, and each would touch the compiler's pages anew.
const LARGE_SCRATCH: i64 = 64 << 20;

/// How a program is compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileOptions {
    /// Copies of the program, each on its own device; must equal the module's `mhlo.num_replicas` where that is present.
    pub replicas: usize,
    /// Parts into which each copy is split.
    pub partitions: usize,
    /// Ids of the devices, replica by replica, partition by partition; the plugin chooses where absent.
    pub device_assignment: Option<Vec<i64>>,
    /// Values for fields of XLA's `DebugOptions`, by name without dashes; an unknown name is an error of the compilation.
    pub overrides: BTreeMap<String, OverrideValue>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            partitions: 1,
            device_assignment: None,
            overrides: BTreeMap::new(),
        }
    }
}

/// Value of a compile option override; text is parsed by XLA (`True`, enum names, comma-separated lists).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum OverrideValue {
    /// A string, or anything XLA parses from one.
    Text(String),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl Client {
    /// Compiles the text of a StableHLO module.
    ///
    /// # Errors
    /// The device assignment has not `replicas * partitions` ids, or the plugin's own: a malformed module, an unknown override.
    pub fn compile(&self, code: &str, options: &CompileOptions) -> Result<Executable, PjrtError> {
        let encoded = options.encode()?;
        // The plugin's parser stops at a zero byte behind the text and reads beyond the size it is given.
        let code = [code.as_bytes(), b"\0"].concat();
        let program = sys::Program {
            struct_size: size_of::<sys::Program>(),
            extension_start: std::ptr::null_mut(),
            code: code.as_ptr().cast(),
            code_size: code.len() - 1,
            format: c"mlir".as_ptr(),
            format_size: 4,
        };
        let mut args = sys::ClientCompile {
            client: self.0.raw,
            program: &raw const program,
            compile_options: encoded.as_ptr().cast(),
            compile_options_size: encoded.len(),
            ..Args::empty()
        };
        // SAFETY: the program and the options live over the call; the executable is ours.
        let executable = unsafe {
            self.0.api.call(&mut args)?;
            Executable::from_raw(self, args.executable)?
        };
        let memory = executable.memory_stats();
        if memory.is_ok_and(|memory| memory.temporary >= LARGE_SCRATCH) {
            give_back_unused();
        }
        Ok(executable)
    }
}

impl CompileOptions {
    /// The `CompileOptionsProto` message.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, PjrtError> {
        let mut build = Message::default();
        // -1: no device ordinal; an absent field would mean device 0.
        build.int(1, -1);
        build.int(4, self.replicas as i64);
        build.int(5, self.partitions as i64);
        build.int(6, i64::from(self.partitions > 1));
        if let Some(ids) = &self.device_assignment {
            build.bytes(9, &self.encode_assignment(ids)?);
        }
        build.int(19, i64::from(self.partitions > 1));
        let mut options = Message::default();
        options.bytes(3, &build.0);
        for (name, value) in &self.overrides {
            let mut entry = Message::default();
            entry.bytes(1, name.as_bytes());
            entry.bytes(2, &value.encode());
            options.bytes(7, &entry.0);
        }
        Ok(options.0)
    }

    /// `DeviceAssignmentProto`: one entry per partition, listing a device per replica.
    fn encode_assignment(&self, ids: &[i64]) -> Result<Vec<u8>, PjrtError> {
        if ids.len() != self.replicas * self.partitions || ids.is_empty() {
            let message = format!(
                "the device assignment must list {} replicas times {} partitions of device ids, got {ids:?}",
                self.replicas, self.partitions
            );
            return Err(PjrtError::invalid(sys::ClientCompile::CALL, message));
        }
        let mut assignment = Message::default();
        assignment.int(1, self.replicas as i64);
        assignment.int(2, self.partitions as i64);
        for partition in 0..self.partitions {
            let mut packed = Message::default();
            ids.iter()
                .skip(partition)
                .step_by(self.partitions)
                .for_each(|id| packed.varint(id.cast_unsigned()));
            let mut devices = Message::default();
            devices.bytes(1, &packed.0);
            assignment.bytes(3, &devices.0);
        }
        Ok(assignment.0)
    }
}

impl OverrideValue {
    fn encode(&self) -> Vec<u8> {
        let mut message = Message::default();
        match self {
            Self::Text(value) => message.bytes(1, value.as_bytes()),
            Self::Bool(value) => message.int(2, i64::from(*value)),
            Self::Int(value) => message.int(3, *value),
            Self::Float(value) => message.double(4, *value),
        }
        message.0
    }
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value.cast_unsigned());
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_options_have_the_expected_bytes() {
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let build: Vec<u8> = [
            &[0x08][..],
            &minus_one,
            &[0x20, 1, 0x28, 1, 0x30, 0, 0x98, 1, 0],
        ]
        .concat();
        let expected = [&[0x1a, build.len() as u8][..], &build].concat();
        assert_eq!(CompileOptions::default().encode().unwrap(), expected);
    }

    #[test]
    fn assignments_are_written_partition_by_partition() {
        let options = CompileOptions {
            replicas: 2,
            partitions: 2,
            ..CompileOptions::default()
        };
        let bytes = options.encode_assignment(&[10, 11, 20, 300]).unwrap();
        assert_eq!(
            bytes,
            [
                0x08, 2, 0x10, 2, 0x1a, 4, 0x0a, 2, 10, 20, 0x1a, 5, 0x0a, 3, 11, 0xac, 2
            ]
        );
        let error = options.encode_assignment(&[1, 2]).unwrap_err().to_string();
        assert!(error.contains("2 replicas times 2 partitions"), "{error}");
    }

    #[test]
    fn override_values_use_their_field_of_the_message() {
        assert_eq!(OverrideValue::Text("a".into()).encode(), [0x0a, 1, b'a']);
        assert_eq!(OverrideValue::Bool(true).encode(), [0x10, 1]);
        assert_eq!(OverrideValue::Int(300).encode(), [0x18, 0xac, 2]);
        assert_eq!(
            OverrideValue::Float(1.0).encode(),
            [0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]
        );
    }
}
