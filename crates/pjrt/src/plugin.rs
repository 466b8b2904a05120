//! Loading a plugin, and the one generic call into it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::environment::set_variable_while_alone;
use crate::error::{LoadError, PjrtError, StatusCode};
use crate::sys::{self, Args};

/// A loaded PJRT plugin; it stays loaded until the process ends.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    api: Api,
    path: PathBuf,
}

impl Plugin {
    /// Loads the plugin at `path` and starts it.
    ///
    /// Where the process has no other thread yet, it sets the environment variable `TF_CPP_MIN_LOG_LEVEL` to 2 if that is absent, so
    /// that the plugin logs errors only.
    ///
    /// # Errors
    /// The file is absent, is not a shared library of this machine, is not a plugin, or has an API version this crate cannot speak.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref().to_path_buf();
        check_file(&path)?;
        let _ = set_variable_while_alone("TF_CPP_MIN_LOG_LEVEL", "2");
        let api = open(&path)?;
        check_version(api, &path)?;
        // SAFETY: the table is a PJRT_Api, and the arguments are those of PJRT_Plugin_Initialize.
        unsafe { api.call(&mut sys::PluginInitialize::empty()) }.map_err(|source| {
            LoadError::Start {
                path: path.clone(),
                source,
            }
        })?;
        Ok(Self(Arc::new(Inner { api, path })))
    }

    /// A plugin whose functions are in this table.
    #[cfg(test)]
    pub(crate) fn of_table(table: &'static [usize]) -> Self {
        Self(Arc::new(Inner {
            api: Api(table.as_ptr().cast()),
            path: PathBuf::new(),
        }))
    }

    /// The file the plugin was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The plugin's API version, (major, minor).
    #[must_use]
    pub fn api_version(&self) -> (i32, i32) {
        self.0.api.version()
    }

    /// A sentence for the user when the plugin is newer than any this crate was tested with.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (major, minor) = self.api_version();
        (minor > sys::MAX_MINOR).then(|| {
            format!(
                "the plugin {} speaks pjrt api {major}.{minor}, newer than 0.{}, the newest this build of phalanx was tested with",
                self.path().display(),
                sys::MAX_MINOR
            )
        })
    }

    /// What the plugin says of itself, such as `stablehlo_current_version`.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn attributes(&self) -> Result<BTreeMap<String, Attribute>, PjrtError> {
        let mut args = sys::PluginAttributes::empty();
        // SAFETY: the arguments are those of the slot; the returned array lives as long as the plugin.
        unsafe {
            self.0.api.call(&mut args)?;
            Ok(read_attributes(args.attributes, args.num_attributes))
        }
    }

    pub(crate) fn api(&self) -> Api {
        self.0.api
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("path", &self.0.path)
            .field("api", &self.api_version())
            .finish()
    }
}

/// A value in a list of attributes of a plugin or device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Attribute {
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

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(value) => f.write_str(value),
            Self::Int(value) => value.fmt(f),
            Self::Ints(value) => write!(f, "{value:?}"),
            Self::Float(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

/// Reads a list of `PJRT_NamedValue`.
///
/// # Safety
/// `values` points at `count` valid named values (or `count` is zero).
pub(crate) unsafe fn read_attributes(
    values: *const sys::NamedValue,
    count: usize,
) -> BTreeMap<String, Attribute> {
    // SAFETY: the caller's promise; the union member is the one that `kind` names.
    let read = |value: &sys::NamedValue| unsafe {
        let attribute = match value.kind {
            0 => Attribute::Text(text(value.value as *const c_char, value.value_size)),
            1 => Attribute::Int(value.value.cast_signed()),
            2 => Attribute::Ints(slice(value.value as *const i64, value.value_size).to_vec()),
            3 => Attribute::Float(f32::from_bits(value.value as u32)),
            4 => Attribute::Bool(value.value as u8 != 0),
            _ => return None,
        };
        Some((text(value.name, value.name_size), attribute))
    };
    // SAFETY: the caller's promise.
    unsafe { slice(values, count) }
        .iter()
        .filter_map(read)
        .collect()
}

/// The plugin's function table.
#[derive(Clone, Copy)]
pub(crate) struct Api(*const u8);

// SAFETY: the table is immutable static memory of the plugin, and PJRT functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// Calls the function of `args` after checking that the plugin has it.
    ///
    /// # Safety
    /// The handles and pointers in `args` are valid for that function.
    pub(crate) unsafe fn call<A: Args>(self, args: &mut A) -> Result<(), PjrtError> {
        let Some(function) = self.slot(A::SLOT) else {
            return Err(self.missing(A::CALL));
        };
        // SAFETY: slot `A::SLOT` holds a function of one pointer to `A` returning PJRT_Error* (contract of `Args`); the caller vouches for the fields.
        let error = unsafe {
            let function: unsafe extern "C" fn(*mut A) -> *mut sys::Error =
                std::mem::transmute(function);
            function(args)
        };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the function returned this error to us.
        Err(unsafe { self.take_error(error, A::CALL) })
    }

    /// Calls a destructor; its error could only be our own bug and is dropped.
    ///
    /// # Safety
    /// As for `call`.
    pub(crate) unsafe fn destroy<A: Args>(self, mut args: A) {
        // SAFETY: the caller's promise.
        let result = unsafe { self.call(&mut args) };
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Turns a `PJRT_Error` into ours and destroys it.
    ///
    /// # Safety
    /// `error` is a live error of this plugin that we own.
    pub(crate) unsafe fn take_error(self, error: *mut sys::Error, call: &'static str) -> PjrtError {
        let mut code = sys::ErrorGetCode {
            error,
            ..Args::empty()
        };
        let mut message = sys::ErrorMessage {
            error,
            ..Args::empty()
        };
        let mut dead = sys::ErrorDestroy {
            error,
            ..Args::empty()
        };
        // SAFETY: LEAST_SIZE guarantees the three slots; the message lives until the error is destroyed, and is copied before that.
        let text = unsafe {
            let get_code: unsafe extern "C" fn(*mut sys::ErrorGetCode) -> *mut sys::Error =
                std::mem::transmute(self.word(sys::table::ERROR_GET_CODE));
            let get_message: unsafe extern "C" fn(*mut sys::ErrorMessage) =
                std::mem::transmute(self.word(sys::table::ERROR_MESSAGE));
            let destroy: unsafe extern "C" fn(*mut sys::ErrorDestroy) =
                std::mem::transmute(self.word(sys::table::ERROR_DESTROY));
            get_code(&raw mut code);
            get_message(&raw mut message);
            let text = text(message.message, message.message_size);
            destroy(&raw mut dead);
            text
        };
        PjrtError::new(call, StatusCode::from_c(code.code), self.explain_size(text))
    }

    /// Says that the plugin is newer than this crate where the plugin refused the size of a struct.
    fn explain_size(self, text: String) -> String {
        let refused = text.contains("Check installed software versions")
            || (text.contains("struct_size") && text.contains("expected"));
        if !refused {
            return text;
        }
        let (major, minor) = self.version();
        format!(
            "the plugin (pjrt api {major}.{minor}) is newer than this build of phalanx (up to 0.{}) and refuses its call: {text}; install an older plugin or a newer phalanx",
            sys::MAX_MINOR
        )
    }

    fn missing(self, call: &'static str) -> PjrtError {
        let (major, minor) = self.version();
        let message = format!(
            "the plugin (pjrt api {major}.{minor}) has no such function; this build of phalanx speaks up to 0.{}: install a newer plugin",
            sys::MAX_MINOR
        );
        PjrtError::new(call, StatusCode::Unimplemented, message)
    }

    pub(crate) fn version(self) -> (i32, i32) {
        // SAFETY: the version struct is inside the first 40 bytes of every PJRT_Api.
        unsafe {
            (
                self.0.add(sys::table::MAJOR).cast::<i32>().read(),
                self.0.add(sys::table::MINOR).cast::<i32>().read(),
            )
        }
    }

    /// The FFI extension of the plugin, if it has one.
    pub(crate) fn ffi(self) -> Option<&'static sys::FfiExtension> {
        let mut next = self
            .word(sys::table::EXTENSION_START)
            .cast::<sys::Extension>();
        // SAFETY: extensions are a linked list of static structs that start with `Extension`; the size check covers the fields read.
        unsafe {
            while let Some(extension) = next.as_ref() {
                if extension.kind == sys::EXTENSION_FFI
                    && extension.struct_size >= size_of::<sys::FfiExtension>()
                {
                    return Some(&*next.cast::<sys::FfiExtension>());
                }
                next = extension.next;
            }
        }
        None
    }

    /// Address of the table: one per loaded plugin.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    fn struct_size(self) -> usize {
        // SAFETY: struct_size is the first field.
        unsafe { self.0.cast::<usize>().read() }
    }

    fn slot(self, offset: usize) -> Option<*const c_void> {
        let word = if offset + 8 <= self.struct_size() {
            self.word(offset)
        } else {
            std::ptr::null()
        };
        (!word.is_null()).then_some(word)
    }

    fn word(self, offset: usize) -> *const c_void {
        // SAFETY: callers pass offsets below struct_size (checked in `slot`, or below LEAST_SIZE, checked at load).
        unsafe { self.0.add(offset).cast::<*const c_void>().read() }
    }
}

/// Copies a string of the plugin.
///
/// # Safety
/// `pointer` is null or points at `size` bytes.
pub(crate) unsafe fn text(pointer: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { slice(pointer.cast::<u8>(), size) }).into_owned()
}

/// A slice of the plugin's memory that may be null when empty.
///
/// # Safety
/// `pointer` is null or points at `size` values that live for `'a`.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, size: usize) -> &'a [T] {
    if pointer.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer, size) }
}

fn open(path: &Path) -> Result<Api, LoadError> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
    // An absolute path keeps dlopen from searching the library path for a bare file name.
    let absolute = std::fs::canonicalize(path).map_err(|source| LoadError::Unreadable {
        path: path.to_path_buf(),
        source,
    })?;
    // SAFETY: the initialisers of the library run; it is the plugin that the user asked for.
    let library =
        unsafe { Library::open(Some(&absolute), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
            LoadError::Refused {
                path: path.to_path_buf(),
                reason: error.to_string(),
            }
        })?;
    // SAFETY: GetPjrtApi has this type in every plugin.
    let entry: Symbol<unsafe extern "C" fn() -> *const u8> =
        unsafe { library.get(b"GetPjrtApi\0") }.map_err(|_| LoadError::NoEntry {
            path: path.to_path_buf(),
        })?;
    // SAFETY: GetPjrtApi takes nothing and may be called at any time.
    let table = unsafe { entry() };
    // Plugins keep threads and static state: they are never unloaded.
    std::mem::forget(library);
    if table.is_null() {
        Err(LoadError::NoEntry {
            path: path.to_path_buf(),
        })
    } else {
        Ok(Api(table))
    }
}

fn check_version(api: Api, path: &Path) -> Result<(), LoadError> {
    let (major, minor) = api.version();
    let usable =
        major == 0 && minor >= sys::MIN_MINOR && api.struct_size() >= sys::table::LEAST_SIZE;
    if usable {
        Ok(())
    } else {
        Err(LoadError::Version {
            path: path.to_path_buf(),
            plugin: format!("{major}.{minor}"),
        })
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "an x86-64 elf shared library");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "an aarch64 elf shared library");

/// Looks at the file before the system's loader does, for a clearer error, and because the loader dies of a file that was cut short.
fn check_file(path: &Path) -> Result<(), LoadError> {
    let unreadable = |source| LoadError::Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let refused = |found| {
        Err(LoadError::NotALibrary {
            path: path.to_path_buf(),
            found,
            expected: MACHINE.1,
        })
    };
    let mut head = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return refused("it is a folder".into());
    }
    file.take(4096).read_to_end(&mut head).map_err(unreadable)?;
    if let Some(found) = foreign(&head) {
        return refused(found);
    }
    match loaded_size(&head) {
        Some(expected) if expected <= metadata.len() => Ok(()),
        Some(expected) => refused(format!(
            "it is cut short: {} bytes of at least {expected}",
            metadata.len()
        )),
        None => refused("its elf header is damaged".into()),
    }
}

/// Bytes of an elf file up to the end of its last loaded segment, from its first bytes.
fn loaded_size(head: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        Some(u64::from_le_bytes(
            head.get(at..at.checked_add(8)?)?.try_into().ok()?,
        ))
    };
    let half =
        |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?) as usize);
    let (table, size, count) = (usize::try_from(word(32)?).ok()?, half(54)?, half(56)?);
    let mut end = 0;
    for index in 0..count {
        let at = table.checked_add(index * size)?;
        // The low half of this word is the kind of the segment: 1 is loaded.
        if word(at)? as u32 == 1 {
            end = end.max(word(at.checked_add(8)?)?.checked_add(word(at.checked_add(32)?)?)?);
        }
    }
    Some(end)
}

/// What the file with these first bytes is, when this machine cannot load it.
fn foreign(head: &[u8]) -> Option<String> {
    if head.len() < 20 || head[..4] != *b"\x7fELF" {
        return Some("it is not an elf file".into());
    }
    let kind = u16::from_le_bytes([head[16], head[17]]);
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head[4] != 2 || machine != MACHINE.0 {
        return Some(format!(
            "it is an elf file for another machine (class {}, machine {machine})",
            head[4]
        ));
    }
    (kind != 3).then(|| format!("it is an elf file of type {kind}, not a shared library"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF".to_vec();
        head.extend([class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        head.extend(kind.to_le_bytes());
        head.extend(machine.to_le_bytes());
        head
    }

    #[test]
    fn foreign_files_are_named() {
        assert_eq!(foreign(&header(2, 3, MACHINE.0)), None);
        assert!(foreign(b"#!/bin/sh").unwrap().contains("not an elf file"));
        assert!(foreign(b"").unwrap().contains("not an elf file"));
        assert!(
            foreign(&header(1, 3, 3))
                .unwrap()
                .contains("another machine")
        );
        assert!(
            foreign(&header(2, 2, MACHINE.0))
                .unwrap()
                .contains("not a shared library")
        );
    }

    /// A table with this version and size; leaked, as real ones are static.
    fn table(minor: i32, size: usize) -> Api {
        let words = Box::leak(vec![0u64; 143].into_boxed_slice());
        words[0] = size as u64;
        words[4] = u64::from(minor.cast_unsigned()) << 32;
        Api(words.as_ptr().cast())
    }

    #[test]
    fn versions_outside_the_range_are_refused_with_both_versions() {
        assert!(check_version(table(115, 1144), Path::new("p.so")).is_ok());
        assert!(check_version(table(200, 2000), Path::new("p.so")).is_ok());
        let error = check_version(table(40, 1144), Path::new("p.so"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("pjrt api 0.40") && error.contains("0.90 to 0.115"),
            "{error}"
        );
        assert!(check_version(table(115, 300), Path::new("p.so")).is_err());
    }

    #[test]
    fn newer_plugins_warn() {
        let plugin = |minor| {
            Plugin(Arc::new(Inner {
                api: table(minor, 1144),
                path: "p.so".into(),
            }))
        };
        assert_eq!(plugin(115).warning(), None);
        assert!(plugin(116).warning().unwrap().contains("0.116"));
    }

    #[test]
    fn a_missing_function_names_itself_and_the_versions() {
        // SAFETY: the slot is absent, so nothing is called.
        let error =
            unsafe { table(95, 700).call(&mut sys::ExecutableFingerprint::empty()) }.unwrap_err();
        assert_eq!(
            (error.code, error.call),
            (StatusCode::Unimplemented, "PJRT_Executable_Fingerprint")
        );
        assert!(
            error.message.contains("0.95") && error.message.contains("0.115"),
            "{error}"
        );
    }

    #[test]
    fn a_refused_struct_size_says_that_the_plugin_is_newer() {
        let text = table(120, 1144).explain_size("Unexpected PJRT_ExecuteOptions size: expected 160, got 144. Check installed software versions.".into());
        assert!(
            text.contains("0.120") && text.contains("newer than this build"),
            "{text}"
        );
    }
}
