//! Files that a command reads, none of which is a pipe, and files that it writes, none of which is one that it reads.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use phalanx::data::{ImageFolder, files_matching, is_file_pattern};
use rustix::fs::{Access, access};

use crate::config::{Position, Problem, Problems, TrainConfig};
use crate::failure::{Exit, Failure};
use crate::record;
use crate::run_folder::is_url;

/// What names a file that has no option.
pub(crate) const FILE: &str = "file";

/// Refuses a path whose bytes can be read once only: rows are gone through several times.
pub(crate) fn check_rereadable(path: &Path) -> phalanx::Result<()> {
    let kind = match fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => return Ok(()),
        Ok(found) if found.file_type().is_fifo() => "is a pipe, and is",
        Ok(_) => "is no file, and is",
        Err(_) if path.file_name().is_some_and(|name| name == "-") => {
            "would be standard input, which is"
        }
        // Opening it says what is wrong.
        Err(_) => return Ok(()),
    };
    Err(phalanx::Error::User(format!(
        "{} {kind} read more than once; write it to a file first, and give that file",
        path.display()
    )))
}

/// Refuses to write to a file that the command reads, by whatever name: it would be lost. So it does where none can be written, before
/// the work is done of which it is the result. Another file that is there is replaced, and a folder that is not there is made.
pub(crate) fn check_target(target: &Path, read: &[PathBuf], option: &str) -> Result<(), Failure> {
    let wrong = match is_one_of(target, read) {
        true => Some(would_be_lost(target)),
        false => unwritable(target).map(|why| format!("cannot write {}: {why}", target.display())),
    };
    let Some(why) = wrong else {
        return Ok(());
    };
    Err(Failure::new(Exit::Usage, why).next(format!("choose another {option}")))
}

/// Why a file cannot be written, by what is there of its path now.
fn unwritable(target: &Path) -> Option<String> {
    let is_folder = target.is_dir() || target.as_os_str().as_encoded_bytes().ends_with(b"/");
    match (is_folder, is_url(target)) {
        (true, _) => return Some("it is a folder, and expected is a file".to_owned()),
        (_, true) => return Some("it is no file of this machine".to_owned()),
        (false, false) => {}
    }
    let whole = match std::path::absolute(target) {
        Ok(whole) => whole,
        Err(error) => return Some(error.to_string()),
    };
    let there = whole.ancestors().find(|path| path.exists())?;
    let shown = there.display();
    if there != whole && !there.is_dir() {
        return Some(format!("{shown} is no folder"));
    }
    let error = io::Error::from(access(there, Access::WRITE_OK).err()?);
    Some(format!("{shown}: {error}"))
}

/// Refuses callbacks that write to a file that the training reads. Weights with which it begins may be replaced by better ones.
pub(crate) fn check_callbacks(config: &TrainConfig) -> Result<(), Problems> {
    let read = read_by_training(&TrainConfig {
        first_weights: None,
        ..config.clone()
    });
    for callback in &config.callbacks {
        let named = ["filename", "filepath"].map(|key| (key, callback.settings[key].as_str()));
        for (key, target) in named {
            let target = target.map(Path::new);
            if let Some(target) = target.filter(|target| is_one_of(target, &read)) {
                let message = format!("`{}`: {}", callback.name, would_be_lost(target));
                let next = format!("choose another `{key}`");
                return Err(config.problems(vec![Problem::new(callback.at, message, next)]));
            }
        }
    }
    Ok(())
}

fn would_be_lost(target: &Path) -> String {
    let shown = target.display();
    format!("{shown} is one of the files that are read here, and would be written over")
}

/// The training file, its data, and the model that it begins with.
pub(crate) fn read_by_training(config: &TrainConfig) -> Vec<PathBuf> {
    let mut read = vec![config.origin.clone()];
    let mut config = config.clone();
    let mut note = |path: &Path, _: Position| {
        read.push(path.to_owned());
        Ok(path.to_owned())
    };
    // A note of a path refuses none.
    let _ = config.localize_data(&mut note);
    let _ = config.localize_model(&mut note);
    read
}

/// What is read of a training that was: its record, its model and its checkpoint.
pub(crate) fn read_of_run(folder: &Path, model: PathBuf, checkpoint: PathBuf) -> [PathBuf; 3] {
    [folder.join(record::NAME), model, checkpoint]
}

/// Whether a file is one of those at these paths, of folders those that [`in_folder`] finds.
fn is_one_of(target: &Path, read: &[PathBuf]) -> bool {
    let Some(own) = identity(target) else {
        return false;
    };
    let mut all = read.iter().flat_map(|path| files_at(path));
    all.any(|path| identity(&path) == Some(own))
}

/// The files of a model, a checkpoint or examples. Pictures are in folders, one for each class, and what lies beside these is not read.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let own = entries(folder);
    let pictures: Vec<PathBuf> = own.iter().flat_map(|class| pictures_in(class)).collect();
    if pictures.is_empty() { own } else { pictures }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Pictures in a folder and in folders in it, without links to folders, which may lead back.
fn pictures_in(folder: &Path) -> Vec<PathBuf> {
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir());
    if !is_folder {
        return Vec::new();
    }
    let entries = entries(folder);
    let below: Vec<PathBuf> = entries.iter().flat_map(|path| pictures_in(path)).collect();
    let pictures = entries.into_iter();
    let pictures = pictures.filter(|path| ImageFolder::is_image(path));
    pictures.chain(below).collect()
}

fn files_at(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return in_folder(path);
    }
    let pattern = path.to_string_lossy();
    match !path.exists() && is_file_pattern(&pattern) {
        true => files_matching(&pattern).unwrap_or_default(),
        false => vec![path.to_owned()],
    }
}

/// What a regular file is by whatever path: its device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok().filter(Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

/// Makes a file, and its folder, in place of one that is there where that may be replaced.
pub(crate) fn create(to: &Path, overwrite: bool) -> Result<File, Failure> {
    // Such as standard output, which may be a file.
    let is_output = ["/dev", "/proc"]
        .iter()
        .any(|system| to.starts_with(system));
    if !overwrite && to.is_file() && !is_output {
        let message = format!("{} is there already", to.display());
        return Err(Failure::new(Exit::Usage, message)
            .next("choose another --to, or replace it with --overwrite"));
    }
    open(to, "--to")
}

/// Writes a file, and makes its folder, in place of one that is there.
pub(crate) fn write(to: &Path, contents: &[u8], option: &str) -> Result<(), Failure> {
    let written = open(to, option)?.write_all(contents);
    written.map_err(|error| not_written(to, &error, option))
}

fn open(to: &Path, option: &str) -> Result<File, Failure> {
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| File::create(to))
        .map_err(|error| not_written(to, &error, option))
}

fn not_written(to: &Path, error: &io::Error, option: &str) -> Failure {
    let message = format!("cannot write {}: {error}", to.display());
    Failure::new(Exit::Failed, message).next(format!("choose another {option}"))
}
