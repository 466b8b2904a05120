//! Files that a command reads, none of which is a pipe, and files that it writes, none of which is one that it reads.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use phalanx::data::{ImageFolder, files_matching, is_file_pattern};

use crate::config::{Position, Problem, Problems, TrainConfig};
use crate::failure::{Exit, Failure};
use crate::record;

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

/// Refuses to write to a file that the command reads, by whatever name: it would be lost.
pub(crate) fn check_target(target: &Path, read: &[PathBuf], option: &str) -> Result<(), Failure> {
    match is_one_of(target, read) {
        false => Ok(()),
        true => Err(Failure::new(Exit::Usage, would_be_lost(target))
            .next(format!("choose another {option}"))),
    }
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
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| File::create(to)).map_err(|error| {
        let message = format!("cannot write {}: {error}", to.display());
        Failure::new(Exit::Failed, message).next("choose another --to")
    })
}
