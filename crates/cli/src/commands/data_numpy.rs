//! Arrays that NumPy saved, for `phalanx data`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx::data::{Dataset, HostTensor, Npz, files_matching, read_npy};
use phalanx::{Error, Result};

use super::data::{Items, shortened};

/// The most bytes of an array.
const MAX_ARRAY: u64 = 1 << 36;
/// Values of an array that are shown.
const VALUES: usize = 32;

/// The rows of arrays in files of their own, or the arrays of archives, which need not be of one length.
pub(super) fn items(data: &str) -> Result<Items> {
    let files = files_matching(data)?;
    match files.iter().any(|file| is_archive(file)) {
        true => of_archives(&files),
        false => of_rows(&files),
    }
}

fn is_archive(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "npz")
}

fn of_rows(files: &[PathBuf]) -> Result<Items> {
    let mut per_file = Vec::new();
    let read = |file: &PathBuf| {
        let array = read_npy(file, MAX_ARRAY)?;
        per_file.push(array.dims().first().copied().unwrap_or(0));
        Dataset::from_arrays(array, Vec::new())
    };
    let all = files.iter().map(read);
    let all = all.reduce(|before, rows| before?.concatenate(&rows?));
    let none = || Err(Error::Bug("no file matches".into()));
    Ok(Items {
        per_file,
        ..Items::of_dataset(all.unwrap_or_else(none)?)
    })
}

/// Each array of archives, read when it is asked for.
fn of_archives(files: &[PathBuf]) -> Result<Items> {
    let mut arrays: Vec<(PathBuf, String)> = Vec::new();
    for file in files.iter().filter(|file| is_archive(file)) {
        let names = Npz::open(file)?.names();
        arrays.extend(names.into_iter().map(|name| (file.clone(), name)));
    }
    let len = arrays.len();
    let read = move |i: usize| -> Result<(String, HostTensor)> {
        let (file, name) = &arrays[i];
        let array = Npz::open(file)?.read(name, MAX_ARRAY)?;
        Ok((name.clone(), array))
    };
    let (read, again) = {
        let read = Arc::new(read);
        (Arc::clone(&read), read)
    };
    Ok(Items {
        unit: "arrays",
        len,
        per_file: Vec::new(),
        lost: Vec::new(),
        read: Box::new(move |i| Ok(read(i)?.1.bytes().len() as u64)),
        describe: Box::new(move |i| again(i).map(|(name, array)| of_array(&name, &array))),
    })
}

fn of_array(name: &str, array: &HostTensor) -> String {
    let first: Vec<f64> = match array.reshape([array.shape().len()]) {
        Some(flat) => flat.slice_rows(0, flat.rows().min(VALUES)).to_f64(),
        None => Vec::new(),
    };
    format!(
        "{name}: {} {}",
        array.shape(),
        shortened(&format!("{first:?}"))
    )
}
