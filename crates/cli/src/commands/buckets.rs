//! What commands read of buckets, copied into the per-user cache before.

use std::path::{Path, PathBuf};

use phalanx::data::BucketCopy;

use super::Context;
use super::session::{failed, wrong};
use crate::config::{Position, Problem, TrainConfig};
use crate::failure::Failure;
use crate::output::notice;
use phalanx_yaml::Bytes;

/// Puts copies on this machine in the place of the URLs of the data.
pub(crate) fn fetch_data(context: &Context, config: &mut TrainConfig) -> Result<(), Failure> {
    let localized = config.localize_data(&mut |path, at| at_line(context, path, at));
    localized.map_err(|problem| wrong(config.problems(vec![problem])))
}

/// Puts copies in the place of the URLs of the model and of the values that it begins with.
pub(crate) fn fetch_model(context: &Context, config: &mut TrainConfig) -> Result<(), Failure> {
    let localized = config.localize_model(&mut |path, at| at_line(context, path, at));
    localized.map_err(|problem| wrong(config.problems(vec![problem])))
}

/// Both of these.
pub(crate) fn fetch(context: &Context, config: &mut TrainConfig) -> Result<(), Failure> {
    fetch_data(context, config)?;
    fetch_model(context, config)
}

/// The copy of what a path names, where it is a URL; else the path.
pub(crate) fn local(context: &Context, path: &Path) -> Result<PathBuf, Failure> {
    copied(context, path).map_err(|error| failed(&error))
}

fn at_line(context: &Context, path: &Path, at: Position) -> Result<PathBuf, Problem> {
    copied(context, path).map_err(|error| {
        let next = "correct the URL, or copy the files to this machine and give their path";
        Problem::new(at, error.to_string(), next)
    })
}

fn copied(context: &Context, path: &Path) -> phalanx::Result<PathBuf> {
    if !BucketCopy::is_url(path) {
        return Ok(path.to_owned());
    }
    let cache = context.search.cache_dir().ok_or_else(|| {
        phalanx::Error::User(format!(
            "there is no folder to copy {} into: neither PHALANX_CACHE_DIR, XDG_CACHE_HOME nor HOME is set",
            path.display()
        ))
    })?;
    let folder = cache.join("data");
    let copy = BucketCopy::find(&path.to_string_lossy(), &folder)?;
    if copy.missing() > 0 && !context.global.quiet {
        let (count, bytes) = (copy.missing(), Bytes(copy.missing_bytes()));
        let files = if count == 1 { "file" } else { "files" };
        let (path, folder) = (path.display(), folder.display());
        notice(format_args!(
            "copying {path} into {folder}: {count} {files}, {bytes}"
        ));
    }
    copy.fetch()
}
