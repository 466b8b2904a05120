//! The digits on two workers, the same job file for all executors.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::Path;

use super::service::Service;

/// The job file.
pub(crate) const JOB: &str = "digits-job.yaml";

/// Whether the program that trains was built; where it was not, that is said.
pub(crate) fn can_train() -> bool {
    let jobs = Path::new(env!("CARGO_BIN_EXE_phalanx-jobs"));
    let is_built = jobs.with_file_name("phalanx").is_file();
    if !is_built {
        phalanx_testkit::skip("build phalanx-cli first");
    }
    is_built
}

/// Writes the job with all that it names into a folder.
pub(crate) fn write(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["examples/digits.yaml", "crates/phalanx/data/digits.csv.gz"] {
        fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
        fs::copy(root.join(file), folder.join(file)).unwrap();
    }
    let keys = "trainingInput: {args: [--epochs, '2']}
phalanx: {program: examples/digits.yaml, workers: 2, kubernetes: {image: img, claim: folder}}
";
    fs::write(folder.join(JOB), keys).unwrap();
}

/// Waits for the end of a job, which must be a good one.
pub(crate) fn succeeds(service: &Service, name: &str) {
    let job = service.end(name);
    let logs = service.ok(&["logs", name]);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}\n{logs}");
}

/// The weights of two jobs are equal to the bit.
pub(crate) fn equal(folder: &Path, one: &str, other: &str) {
    let of = |name: &str| weights(&folder.join("runs").join(name));
    let (one, other) = (of(one), of(other));
    assert!(!one.is_empty(), "there are no weights");
    assert!(one == other, "the weights differ");
}

/// The files of weights in a folder and those below it.
fn weights(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for file in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (file.path(), file.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            all.extend(weights(&path));
        } else if name.ends_with(".safetensors") {
            all.push((name, fs::read(&path).unwrap()));
        }
    }
    all.sort();
    all
}
