//! The package of a job: the folder with its program, copied when the job is submitted.

use std::fs;
use std::path::{Path, PathBuf};

use phalanx_launch::package::{self, Package};
use phalanx_launch::spec::{ExecutorKind, Plan, Program, Source, Spec, bytes};
use serde_json::{Value as Json, json};

use super::Context;
use crate::args::SpecArgs;
use crate::failure::{Failure, NOT_READY};

/// A package that is copied when the job is submitted, and the place for its copy alone.
pub(super) struct Upload {
    package: Package,
    place: String,
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
            None if spec.ours.executor == ExecutorKind::Kubernetes => {
                return Err(Failure::usage(
                    "pods see the package where the volume has it only; add --staging-bucket with a folder on the volume of phalanx.kubernetes.claim",
                ));
            }
            None => package::copies(&context.root).display().to_string(),
        };
        // Neither other jobs nor the copies of before are a part of the program.
        let without = [context.root.clone(), PathBuf::from(&staging)];
        let package = Package::read(&absolute(Path::new(folder))?, &without);
        let package = package.map_err(|why| Failure::new(NOT_READY, why))?;
        let place = package::place(&staging, job);
        Ok(Some(Self { package, place }))
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
        let (here, mut there) = (plan.clone().in_package(self.folder()), plan.clone());
        if let Program::Training { file: name } | Program::Command { program: name } =
            &mut there.program
            && here.program != plan.program
        {
            *name = format!("{}/{name}", self.copy());
        }
        (here, there)
    }

    /// Has the job name the copy. What is wrong with that is known before anything is copied.
    pub(super) fn name_in(&self, body: &mut Json) -> Result<(), Failure> {
        body["trainingInput"]["packageUris"] = json!([self.copy()]);
        let spec = Spec::read(&Source::of_json(body));
        spec.map(drop).map_err(Failure::usage)
    }

    /// Copies it.
    pub(super) fn send(&self) -> Result<(), Failure> {
        let sent = self.package.copy_to(&self.place);
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
        bytes(json["bytes"].as_u64().unwrap_or(0)),
        text("copiedTo")
    )
}
