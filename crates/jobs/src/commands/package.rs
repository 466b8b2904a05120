//! The package of a job: the folder with its program, copied when the job is submitted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx_launch::package::{self, Package};
use phalanx_launch::spec::{ExecutorKind, Plan, Source, Spec};
use phalanx_yaml::Bytes;
use serde_json::{Value as Json, json};

use super::{Context, Done};
use crate::args::SpecArgs;
use crate::failure::{Failure, NOT_READY};

/// A package that is copied when the job is submitted, and the place for its copy alone.
pub(super) struct Upload {
    package: Package,
    place: String,
    /// Whether pods need it, which bring it into a folder of theirs if it is in a bucket.
    for_pods: bool,
}

impl Upload {
    /// The package that --package-path names, if it does.
    pub(super) fn of(
        context: &Context,
        job: &str,
        args: &SpecArgs,
        spec: &Spec,
    ) -> Result<Option<Self>, Failure> {
        let Some(folder) = &args.package_path else {
            return Ok(None);
        };
        let staging = match &args.staging_bucket {
            Some(url) if url.contains("://") => url.trim_end_matches('/').to_owned(),
            Some(folder) => absolute(Path::new(folder))?.display().to_string(),
            None if spec.ours.executor == ExecutorKind::Kubernetes => in_job_dir(job, spec)?,
            None => package::copies(&context.root).display().to_string(),
        };
        // Neither other jobs nor the copies of before are a part of the program, and secrets stay where they are.
        let directory = absolute(Path::new(spec.ours.directory.as_deref().unwrap_or(".")))?;
        let mut without = vec![context.root.clone(), PathBuf::from(&staging)];
        without.extend(spec.ours.secrets.values().map(|file| directory.join(file)));
        let package = Package::read(&absolute(Path::new(folder))?, &without);
        let package = package.map_err(|why| Failure::new(NOT_READY, why))?;
        let place = package::place(&staging, job);
        let place = place.map_err(|error| Failure::new(NOT_READY, error.to_string()))?;
        Ok(Some(Self {
            package,
            place,
            for_pods: spec.ours.executor == ExecutorKind::Kubernetes,
        }))
    }

    /// The folder that is copied.
    pub(super) fn folder(&self) -> &Path {
        self.package.folder()
    }

    fn copy(&self) -> String {
        let name = self.folder().file_name().unwrap_or_default();
        format!("{}/{}", self.place, name.to_string_lossy())
    }

    /// The plan with its program where it is now, and where it will be in the copy.
    pub(super) fn plans(&self, plan: &Plan) -> (Plan, Plan) {
        let copy = match self.for_pods && self.place.contains("://") {
            true => package::in_pods(&self.copy()),
            false => self.copy(),
        };
        let at = |place: &Path| plan.clone().in_package(self.folder(), place);
        (at(self.folder()), at(Path::new(&copy)))
    }

    /// Has the job name the copy. What is wrong with that is known before anything is copied.
    pub(super) fn name_in(&self, body: &mut Json) -> Result<(), Failure> {
        body["trainingInput"]["packageUris"] = json!([self.copy()]);
        let spec = Spec::read(&Source::of_json(body)).map_err(Failure::usage)?;
        let directory = body["phalanx"]["directory"].as_str().unwrap_or_default();
        package::check_for_pods(&spec, Path::new(directory)).map_err(Failure::usage)
    }

    /// Copies it.
    pub(super) fn send(&self) -> Result<(), Failure> {
        let sent = self.package.copy_to(&self.place, self.for_pods);
        sent.map(drop).map_err(|why| Failure::new(NOT_READY, why))
    }

    /// Removes the copy of a job that was refused. In a bucket it stays.
    pub(super) fn remove(&self) {
        let _ = fs::remove_dir_all(&self.place);
    }

    pub(super) fn to_json(&self) -> Json {
        let (files, size) = self.package.size();
        json!({"folder": self.folder(), "files": files, "bytes": size, "copiedTo": self.place})
    }
}

/// A place in `jobDir`, for pods: in its bucket, or on their volume if they have one.
fn in_job_dir(job: &str, spec: &Spec) -> Result<String, Failure> {
    let folder = (spec.job_dir.clone()).unwrap_or_else(|| format!("runs/{job}"));
    if folder.contains("://") {
        return Ok(format!("{folder}/packages"));
    }
    let folder = Path::new(spec.ours.directory.as_deref().unwrap_or(".")).join(folder);
    Ok(absolute(&folder)?.join("packages").display().to_string())
}

/// Brings a package from a bucket into a folder of a pod.
pub(super) fn bring(url: &str, into: &Path) -> Done {
    let brought = package::bring(url, into);
    brought.map_err(|why| Failure::new(NOT_READY, why))?;
    Ok(ExitCode::SUCCESS)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(Failure::not_ready)
}

/// The line of a plan.
pub(super) fn text(json: &Json) -> String {
    let text = |name: &str| json[name].as_str().unwrap_or_default();
    format!(
        "\npackage\n  {} ({} files, {}), copied to {}\n",
        text("folder"),
        json["files"],
        Bytes(json["bytes"].as_u64().unwrap_or(0)),
        text("copiedTo")
    )
}
