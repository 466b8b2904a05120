//! The functions of an MPI library that was opened at run time.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use super::abi::{Abi, MpiHandle, TEXT, identify};
use crate::error::CollectiveError;

macro_rules! api {
    ($($name:ident: $symbol:literal fn($($argument:ty),*);)*) => {
        /// The functions that are used here, all of which answer 0 or a code of an error.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            pub(super) abi: Abi,
            /// What the library says it is.
            pub(super) name: String,
            /// The name under which it was opened.
            pub(super) path: String,
            /// Keeps the functions alive.
            _library: Library,
        }

        impl Api {
            /// Opens a library; it is never closed, because its threads and exit handlers stay.
            ///
            /// # Errors
            /// What the system's loader says, or what does not fit.
            fn open(path: &str) -> Result<&'static Self, String> {
                // SAFETY: MPI libraries may be loaded at any time; the symbols have the C types of the standard with handles of at most
                // the size of a pointer.
                unsafe {
                    let library = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL);
                    let library = library.map_err(|error| loader_says(&error))?;
                    let (abi, name) = identify(&library)?;
                    $(
                        let $name: Symbol<unsafe extern "C" fn($($argument),*) -> c_int> =
                            library.get($symbol).map_err(|error| loader_says(&error))?;
                        let $name = *$name;
                    )*
                    let path = path.to_owned();
                    Ok(Box::leak(Box::new(Self { $($name,)* abi, name, path, _library: library })))
                }
            }
        }
    };
}

type Ints = *const c_int;

api! {
    initialized: b"MPI_Initialized\0" fn(*mut c_int);
    init_thread: b"MPI_Init_thread\0" fn(*mut c_int, *mut c_void, c_int, *mut c_int);
    query_thread: b"MPI_Query_thread\0" fn(*mut c_int);
    finalize: b"MPI_Finalize\0" fn();
    abort: b"MPI_Abort\0" fn(MpiHandle, c_int);
    comm_size: b"MPI_Comm_size\0" fn(MpiHandle, *mut c_int);
    comm_rank: b"MPI_Comm_rank\0" fn(MpiHandle, *mut c_int);
    comm_idup: b"MPI_Comm_idup\0" fn(MpiHandle, *mut MpiHandle, *mut MpiHandle);
    comm_set_errhandler: b"MPI_Comm_set_errhandler\0" fn(MpiHandle, MpiHandle);
    error_class: b"MPI_Error_class\0" fn(c_int, *mut c_int);
    error_string: b"MPI_Error_string\0" fn(c_int, *mut c_char, *mut c_int);
    test: b"MPI_Test\0" fn(*mut MpiHandle, *mut c_int, *mut c_void);
    isend: b"MPI_Isend\0" fn(*const c_void, c_int, MpiHandle, c_int, c_int, MpiHandle, *mut MpiHandle);
    irecv: b"MPI_Irecv\0" fn(*mut c_void, c_int, MpiHandle, c_int, c_int, MpiHandle, *mut MpiHandle);
    ibcast: b"MPI_Ibcast\0" fn(*mut c_void, c_int, MpiHandle, c_int, MpiHandle, *mut MpiHandle);
    allreduce: b"MPI_Allreduce\0" fn(*const c_void, *mut c_void, c_int, MpiHandle, MpiHandle, MpiHandle);
    iallreduce: b"MPI_Iallreduce\0" fn(*const c_void, *mut c_void, c_int, MpiHandle, MpiHandle, MpiHandle, *mut MpiHandle);
    iallgather: b"MPI_Iallgather\0" fn(*const c_void, c_int, MpiHandle, *mut c_void, c_int, MpiHandle, MpiHandle, *mut MpiHandle);
    iallgatherv: b"MPI_Iallgatherv\0" fn(*const c_void, c_int, MpiHandle, *mut c_void, Ints, Ints, MpiHandle, MpiHandle, *mut MpiHandle);
}

impl Api {
    /// Opens the first of these libraries that is there and fits.
    pub(super) fn open_first(paths: &[String]) -> Result<&'static Self, CollectiveError> {
        let mut problems = Vec::new();
        for path in paths {
            match Self::open(path) {
                Ok(api) => return Ok(api),
                Err(problem) => problems.push(format!("{path}: {problem}")),
            }
        }
        Err(CollectiveError::local(
            "open an MPI library",
            format!(
                "{}; name the one of the launcher by {}",
                problems.join("; "),
                super::MPI_LIBRARY_VARIABLE
            ),
        ))
    }

    /// The error of a call that did not answer 0. It has the class beside the text, which some libraries have wrong.
    pub(super) fn check(&self, call: &str, code: c_int) -> Result<(), CollectiveError> {
        if code == 0 {
            return Ok(());
        }
        let (mut class, mut length) = (code, 0);
        let mut text = vec![0u8; TEXT + 1];
        // SAFETY: the text has more room than any library's longest.
        unsafe {
            (self.error_class)(code, &mut class);
            (self.error_string)(code, text.as_mut_ptr().cast(), &mut length);
        }
        let text = &text[..(length.max(0) as usize).min(TEXT)];
        let text = String::from_utf8_lossy(text);
        Err(CollectiveError::local(
            call,
            format!(
                "{} answers: {} (class {class})",
                self.name,
                text.trim_end_matches('\0')
            ),
        ))
    }
}

/// The loader's own message, without libloading's around it.
fn loader_says(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
