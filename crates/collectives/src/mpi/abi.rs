//! The values that MPI libraries of three families give to the names of the standard.
//!
//! A handle is a zeroed `usize`: Open MPI and the ABI of the MPI Forum have pointers, MPICH has 32-bit numbers, which lie in the low half.
//! So one set of function types serves all of them, on little-endian machines.

use std::ffi::{c_char, c_int};

use libloading::os::unix::Library;

/// A communicator, type, operation or request.
pub(crate) type MpiHandle = usize;

/// The constants of a library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abi {
    pub(crate) world: MpiHandle,
    pub(crate) byte: MpiHandle,
    pub(crate) f32: MpiHandle,
    pub(crate) f64: MpiHandle,
    pub(crate) i32: MpiHandle,
    pub(crate) i64: MpiHandle,
    pub(crate) u32: MpiHandle,
    pub(crate) u64: MpiHandle,
    pub(crate) sum: MpiHandle,
    pub(crate) errors_return: MpiHandle,
    pub(crate) in_place: usize,
    pub(crate) status_ignore: usize,
    pub(crate) thread_multiple: c_int,
    /// The least level of threads that is enough: calls are made by several threads, one at a time.
    pub(crate) thread_enough: c_int,
}

/// MPICH and those that keep to its binary interface: Intel MPI, MVAPICH, Cray MPICH.
const MPICH: Abi = Abi {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    f32: 0x4c00_040a,
    f64: 0x4c00_080b,
    i32: 0x4c00_0439,
    i64: 0x4c00_083a,
    u32: 0x4c00_043d,
    u64: 0x4c00_083e,
    sum: 0x5800_0003,
    errors_return: 0x5400_0001,
    in_place: usize::MAX,
    status_ignore: 1,
    thread_multiple: 3,
    thread_enough: 2,
};

/// The binary interface of the MPI Forum, version 1.
const FORUM: Abi = Abi {
    world: 0x101,
    byte: 0x247,
    f32: 0x210,
    f64: 0x214,
    i32: 0x250,
    i64: 0x258,
    u32: 0x251,
    u64: 0x259,
    sum: 0x21,
    errors_return: 0x143,
    in_place: 1,
    status_ignore: 0,
    thread_multiple: 4096,
    thread_enough: 4096,
};

type AbiVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type LibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// What a library answers as its version, and the constants that follow.
///
/// # Errors
/// It is of no family that is known here, with what it says of itself.
pub(crate) fn identify(library: &Library) -> Result<(Abi, String), String> {
    let version = version(library)?;
    if forum_version(library) == Some((1, 0)) {
        return Ok((FORUM, version));
    }
    // SAFETY: the symbol is an object of the library; only its address is taken.
    if unsafe { library.get::<*mut u8>(b"ompi_mpi_comm_world\0") }.is_ok() {
        return Ok((open_mpi(library)?, version));
    }
    const MPICH_FAMILY: [&str; 4] = ["MPICH", "Intel(R) MPI", "MVAPICH", "CRAY"];
    if MPICH_FAMILY.iter().any(|name| version.starts_with(name)) {
        return Ok((MPICH, version));
    }
    Err(format!(
        "it says that it is {version:?}, expected Open MPI, MPICH, Intel MPI, MVAPICH, Cray MPICH or a library with the MPI Forum's ABI 1.0"
    ))
}

fn forum_version(library: &Library) -> Option<(c_int, c_int)> {
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the function has this type wherever it is, and may be called before MPI is started.
    unsafe {
        let get = library.get::<AbiVersion>(b"MPI_Abi_get_version\0").ok()?;
        (get(&mut major, &mut minor) == 0).then_some((major, minor))
    }
}

/// The longest that a library's text is: 8192 bytes with MPICH.
pub(crate) const TEXT: usize = 8192;

/// The first words of what the library says of itself: `Open MPI v4.1.4`, `MPICH Version: 4.0.2`.
fn version(library: &Library) -> Result<String, String> {
    let mut text = vec![0u8; TEXT + 1];
    let mut length = 0;
    // SAFETY: the function has this type in every MPI library since version 3 of the standard, and may be called before MPI is started.
    let code = unsafe {
        let get = library.get::<LibraryVersion>(b"MPI_Get_library_version\0");
        let get = get.map_err(|_| "it is no MPI library of version 3 or newer of the standard")?;
        get(text.as_mut_ptr().cast(), &mut length)
    };
    if code != 0 {
        return Err(format!(
            "it does not say which library it is (error {code})"
        ));
    }
    let text = &text[..(length.max(0) as usize).min(TEXT)];
    let text = String::from_utf8_lossy(text);
    let first = text.split([',', '\n', '\0']).next().unwrap_or_default();
    Ok(first.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Open MPI 4 and 5: constants are addresses of symbols.
fn open_mpi(library: &Library) -> Result<Abi, String> {
    let address = |name: &str| {
        let symbol = format!("{name}\0");
        // SAFETY: the symbol is an object of the library; only its address is taken.
        let found = unsafe { library.get::<*mut u8>(symbol.as_bytes()) };
        let found = found.map_err(|_| format!("it is Open MPI without the symbol {name}"))?;
        Ok::<_, String>(found.into_raw() as usize)
    };
    Ok(Abi {
        world: address("ompi_mpi_comm_world")?,
        byte: address("ompi_mpi_byte")?,
        f32: address("ompi_mpi_float")?,
        f64: address("ompi_mpi_double")?,
        i32: address("ompi_mpi_int32_t")?,
        i64: address("ompi_mpi_int64_t")?,
        u32: address("ompi_mpi_uint32_t")?,
        u64: address("ompi_mpi_uint64_t")?,
        sum: address("ompi_mpi_op_sum")?,
        errors_return: address("ompi_mpi_errors_return")?,
        in_place: 1,
        status_ignore: 0,
        thread_multiple: 3,
        thread_enough: 2,
    })
}

/// A request that has no operation yet.
pub(super) const NO_REQUEST: MpiHandle = 0;
