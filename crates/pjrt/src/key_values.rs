//! Values that the clients of several processes exchange as they start: plugins for GPUs find each other's devices by them, and NCCL its
//! peers.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::sys;

/// Where the clients of one group keep what they tell each other, by key. Calls come from many threads at a time.
pub trait KeyValues: Send + Sync {
    /// The value of a key, waited for.
    ///
    /// # Errors
    /// [`KeyValueError::Late`] when nobody has put it within the time.
    fn get(&self, key: &str, within: Duration) -> Result<Vec<u8>, KeyValueError>;

    /// The value of a key, if it is there.
    ///
    /// # Errors
    /// [`KeyValueError::Absent`] when it is not.
    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError>;

    /// Keeps a value under a key.
    ///
    /// # Errors
    /// [`KeyValueError::Exists`] when the key has one.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError>;
}

/// Why there is no value, or none was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValueError {
    /// Nobody has put the key.
    Absent,
    /// Nobody has put the key within the time.
    Late,
    /// The key has a value.
    Exists,
    /// The store failed.
    Failed(String),
}

impl KeyValueError {
    /// The code of `PJRT_Error_Code` and the message.
    fn told(&self, key: &str) -> (c_int, String) {
        match self {
            Self::Late => (4, format!("nobody has put {key} within the time")),
            Self::Absent => (5, format!("nobody has put {key}")),
            Self::Exists => (6, format!("{key} has a value")),
            Self::Failed(why) => (14, why.clone()),
        }
    }
}

/// The place of a client among the clients of several processes.
#[derive(Clone)]
pub struct ClientGroup {
    /// The number of this process.
    pub node: usize,
    /// The number of processes.
    pub nodes: usize,
    /// What keys of this group begin with: the job and its generation. Plugins use the same keys again after a restart, and would read
    /// what their predecessors wrote.
    pub prefix: String,
    /// Where values are kept.
    pub keys: Arc<dyn KeyValues>,
}

impl ClientGroup {
    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    /// Has the plugin call this group, which must live as long as the client.
    pub(crate) fn fill_in(&self, args: &mut sys::ClientCreate) {
        let group = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        args.kv_get_callback = get as *mut c_void;
        args.kv_get_user_arg = group;
        args.kv_put_callback = put as *mut c_void;
        args.kv_put_user_arg = group;
        args.kv_try_get_callback = try_get as *mut c_void;
        args.kv_try_get_user_arg = group;
    }
}

/// `PJRT_CallbackError`: makes an error of the plugin's.
type MakeError = unsafe extern "C" fn(c_int, *const c_char, usize) -> *mut sys::Error;
type Free = unsafe extern "C" fn(*mut c_char);

/// `PJRT_KeyValueGetCallback_Args`. Plugins leave `struct_size` of these as it is.
#[repr(C)]
struct GetArgs {
    struct_size: usize,
    extension_start: *mut c_void,
    key: *const c_char,
    key_size: usize,
    timeout_in_ms: c_int,
    callback_error: *const MakeError,
    user_arg: *mut c_void,
    value: *mut c_char,
    value_size: usize,
    value_deleter: Option<Free>,
}

/// `PJRT_KeyValueTryGetCallback_Args`.
#[repr(C)]
struct TryGetArgs {
    struct_size: usize,
    extension_start: *mut c_void,
    key: *const c_char,
    key_size: usize,
    callback_error: *const MakeError,
    user_arg: *mut c_void,
    value: *mut c_char,
    value_size: usize,
    value_deleter: Option<Free>,
}

/// `PJRT_KeyValuePutCallback_Args`.
#[repr(C)]
struct PutArgs {
    struct_size: usize,
    extension_start: *mut c_void,
    key: *const c_char,
    key_size: usize,
    value: *const c_char,
    value_size: usize,
    callback_error: *const MakeError,
    user_arg: *mut c_void,
}

unsafe extern "C" {
    fn malloc(bytes: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

/// The plugin frees a value without saying how long it is.
unsafe extern "C" fn free_value(value: *mut c_char) {
    // SAFETY: allocated by `allocated`.
    unsafe { free(value.cast()) };
}

fn allocated(value: &[u8]) -> *mut c_char {
    // SAFETY: as many bytes are written as were allocated.
    unsafe {
        let memory = malloc(value.len().max(1)).cast::<u8>();
        if memory.is_null() {
            std::alloc::handle_alloc_error(std::alloc::Layout::new::<u8>());
        }
        std::ptr::copy_nonoverlapping(value.as_ptr(), memory, value.len());
        memory.cast()
    }
}

/// # Safety
/// `from` points at that many bytes.
unsafe fn bytes<'a>(from: *const c_char, size: usize) -> &'a [u8] {
    match size {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(from.cast(), size) },
    }
}

/// # Safety
/// `make` is what the plugin gave for making errors.
unsafe fn error(make: *const MakeError, error: &KeyValueError, key: &str) -> *mut sys::Error {
    let (code, message) = error.told(key);
    // SAFETY: the caller's promise; the plugin copies the message.
    unsafe { (*make)(code, message.as_ptr().cast(), message.len()) }
}

unsafe extern "C" fn get(args: *mut GetArgs) -> *mut sys::Error {
    // SAFETY: the plugin hands over its arguments, and the group that it was given, which lives as long as the client.
    unsafe {
        let (args, group) = (&mut *args, &*(*args).user_arg.cast::<ClientGroup>());
        let key = String::from_utf8_lossy(bytes(args.key, args.key_size));
        let key = group.key(&key);
        let within = Duration::from_millis(args.timeout_in_ms.max(0) as u64);
        match group.keys.get(&key, within) {
            Ok(value) => {
                args.value = allocated(&value);
                args.value_size = value.len();
                args.value_deleter = Some(free_value);
                std::ptr::null_mut()
            }
            Err(why) => error(args.callback_error, &why, &key),
        }
    }
}

unsafe extern "C" fn try_get(args: *mut TryGetArgs) -> *mut sys::Error {
    // SAFETY: as in `get`.
    unsafe {
        let (args, group) = (&mut *args, &*(*args).user_arg.cast::<ClientGroup>());
        let key = String::from_utf8_lossy(bytes(args.key, args.key_size));
        let key = group.key(&key);
        match group.keys.try_get(&key) {
            Ok(value) => {
                args.value = allocated(&value);
                args.value_size = value.len();
                args.value_deleter = Some(free_value);
                std::ptr::null_mut()
            }
            Err(why) => error(args.callback_error, &why, &key),
        }
    }
}

unsafe extern "C" fn put(args: *mut PutArgs) -> *mut sys::Error {
    // SAFETY: as in `get`.
    unsafe {
        let (args, group) = (&*args, &*(*args).user_arg.cast::<ClientGroup>());
        let key = String::from_utf8_lossy(bytes(args.key, args.key_size));
        let key = group.key(&key);
        match group.keys.put(&key, bytes(args.value, args.value_size)) {
            Ok(()) => std::ptr::null_mut(),
            Err(why) => error(args.callback_error, &why, &key),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::mem::offset_of;
    use std::sync::Mutex;

    use super::*;
    use crate::client::{Client, OptionValue};
    use crate::plugin::Plugin;

    #[test]
    fn layouts_are_those_of_the_c_api() {
        assert_eq!(offset_of!(GetArgs, timeout_in_ms), 32);
        assert_eq!(offset_of!(GetArgs, callback_error), 40);
        assert_eq!(offset_of!(GetArgs, value_deleter), 72);
        assert_eq!(offset_of!(TryGetArgs, callback_error), 32);
        assert_eq!(offset_of!(TryGetArgs, value_deleter), 64);
        assert_eq!(offset_of!(PutArgs, callback_error), 48);
        assert_eq!(offset_of!(PutArgs, user_arg), 56);
    }

    /// A store that keeps the names of its calls.
    #[derive(Default)]
    struct Recorded {
        values: Mutex<BTreeMap<String, Vec<u8>>>,
        calls: Mutex<Vec<String>>,
    }

    impl KeyValues for Recorded {
        fn get(&self, key: &str, within: Duration) -> Result<Vec<u8>, KeyValueError> {
            let call = format!("get {key} {}", within.as_millis());
            self.calls.lock().unwrap().push(call);
            let found = self.values.lock().unwrap().get(key).cloned();
            found.ok_or(KeyValueError::Late)
        }

        fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueError> {
            self.calls.lock().unwrap().push(format!("try_get {key}"));
            let found = self.values.lock().unwrap().get(key).cloned();
            found.ok_or(KeyValueError::Absent)
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
            self.calls.lock().unwrap().push(format!("put {key}"));
            let before = self.values.lock().unwrap().insert(key.into(), value.into());
            before.map_or(Ok(()), |_| Err(KeyValueError::Exists))
        }
    }

    /// The codes of the errors that the fake plugin made.
    static CODES: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

    unsafe extern "C" fn make_error(
        code: c_int,
        _message: *const c_char,
        _size: usize,
    ) -> *mut sys::Error {
        CODES.lock().unwrap().push(code);
        std::ptr::dangling_mut::<u8>().cast()
    }

    /// The `PJRT_Client_Create` of a plugin that exchanges what plugins for GPUs do, and has no devices.
    unsafe extern "C" fn create(args: *mut sys::ClientCreate) -> *mut sys::Error {
        // SAFETY: as a plugin does, with arguments that live over the calls.
        unsafe {
            let args = &*args;
            let options = std::slice::from_raw_parts(args.create_options, args.num_options);
            assert_eq!(options.len(), 3);
            let put: unsafe extern "C" fn(*mut PutArgs) -> *mut sys::Error =
                std::mem::transmute(args.kv_put_callback);
            let get: unsafe extern "C" fn(*mut GetArgs) -> *mut sys::Error =
                std::mem::transmute(args.kv_get_callback);
            let try_get: unsafe extern "C" fn(*mut TryGetArgs) -> *mut sys::Error =
                std::mem::transmute(args.kv_try_get_callback);
            let make: MakeError = make_error;
            let (key, value) = ("local_topology/cuda/1", [0u8, 255, 7]);
            let mut put_args: PutArgs = std::mem::zeroed();
            put_args.key = key.as_ptr().cast();
            put_args.key_size = key.len();
            put_args.value = value.as_ptr().cast();
            put_args.value_size = value.len();
            put_args.callback_error = &raw const make;
            put_args.user_arg = args.kv_put_user_arg;
            assert!(put(&mut put_args).is_null());
            assert!(!put(&mut put_args).is_null());
            let mut get_args: GetArgs = std::mem::zeroed();
            get_args.key = key.as_ptr().cast();
            get_args.key_size = key.len();
            get_args.timeout_in_ms = 1500;
            get_args.callback_error = &raw const make;
            get_args.user_arg = args.kv_get_user_arg;
            assert!(get(&mut get_args).is_null());
            assert_eq!(bytes(get_args.value, get_args.value_size), value);
            get_args.value_deleter.unwrap()(get_args.value);
            get_args.key_size -= 1;
            assert!(!get(&mut get_args).is_null());
            let mut try_args: TryGetArgs = std::mem::zeroed();
            try_args.key = key.as_ptr().cast();
            try_args.key_size = 3;
            try_args.callback_error = &raw const make;
            try_args.user_arg = args.kv_try_get_user_arg;
            assert!(!try_get(&mut try_args).is_null());
        }
        std::ptr::null_mut()
    }

    unsafe extern "C" fn destroy(_args: *mut sys::ClientDestroy) -> *mut sys::Error {
        std::ptr::null_mut()
    }

    #[test]
    fn a_plugin_exchanges_values_under_the_keys_of_its_generation() {
        let mut table = vec![0usize; 80];
        // The size of the table, then the two functions that it has.
        table[0] = 640;
        table[120 / 8] = create as *const () as usize;
        table[128 / 8] = destroy as *const () as usize;
        let plugin = Plugin::of_table(table.leak());
        let store = Arc::new(Recorded::default());
        let group = ClientGroup {
            node: 1,
            nodes: 2,
            prefix: "job7/3".into(),
            keys: Arc::clone(&store) as Arc<dyn KeyValues>,
        };
        let options = [("allocator", OptionValue::Text("default".into()))];
        // The next call is missing.
        assert!(Client::in_group(&plugin, &options, group).is_err());
        let topology = "job7/3/local_topology/cuda";
        assert_eq!(
            *store.calls.lock().unwrap(),
            [
                format!("put {topology}/1"),
                format!("put {topology}/1"),
                format!("get {topology}/1 1500"),
                format!("get {topology}/ 1500"),
                "try_get job7/3/loc".into(),
            ]
        );
        assert_eq!(*CODES.lock().unwrap(), [6, 4, 5]);
    }
}
