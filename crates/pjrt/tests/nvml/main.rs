//! What a driver tells of GPUs, by a library in the place of NVIDIA's, which the C compiler that also links Rust's programs makes.

#![cfg(target_os = "linux")]

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;
use phalanx_pjrt::NvidiaGpus;

/// A library of a test by itself, since libraries have variables; removed at its end.
struct Fake(PathBuf);

impl Fake {
    fn build(name: &str, definitions: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("nvml-{name}-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvml/fake_nvml.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC"]).args(definitions);
        compiler.arg(source).arg("-o").arg(&path);
        let made = compiler
            .output()
            .expect("`cc`, which links Rust's programs");
        assert!(made.status.success(), "{made:?}");
        Self(path)
    }

    fn open(&self, gpus: &[usize], visible: Option<&str>) -> Option<NvidiaGpus> {
        NvidiaGpus::open_library(&self.0, gpus, visible)
    }

    /// The memory in GiB of the GPUs that are found, which tells them apart, and their numbers.
    fn found(&self, gpus: &[usize], visible: Option<&str>) -> Vec<(usize, u64)> {
        let opened = self.open(gpus, visible);
        let uses = opened.map_or_else(Vec::new, |opened| opened.sample());
        let memory = uses.iter().map(|each| (each.gpu, each.memory_used));
        memory
            .map(|(gpu, used)| (gpu, used.unwrap() >> 30))
            .collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn what_a_driver_does_not_tell_is_left_out() {
    let fake = Fake::build("sample", &[]);
    let gpus = fake.open(&[0, 2], None).unwrap();
    let first = gpus.sample();
    assert_eq!([first[0].gpu, first[1].gpu], [0, 2]);
    assert_eq!(first[0].busy_percent, Some(70.0));
    assert_eq!(first[0].memory_access_percent, Some(30.0));
    assert_eq!(first[0].memory_used, Some(10 << 30));
    assert_eq!(first[0].power_watts, Some(250.501));
    assert_eq!(first[1].busy_percent, None);
    assert_eq!(first[1].memory_access_percent, None);
    assert_eq!(first[1].memory_used, Some(12 << 30));
    assert_eq!(first[1].power_watts, None);
    let lost = gpus.sample();
    assert_eq!(lost[0].busy_percent, None);
    assert_eq!(lost[0].memory_used, Some(10 << 30));
    assert_eq!(gpus.sample()[0], first[0]);
}

#[test]
fn gpus_are_the_ones_that_cuda_shows() {
    let fake = Fake::build("visible", &[]);
    let all = &[0, 1, 2, 3];
    assert_eq!(fake.found(all, None), [(0, 10), (1, 11), (2, 12)]);
    assert_eq!(fake.found(&[1], None), [(1, 11)]);
    assert_eq!(fake.found(all, Some("2, 0")), [(0, 12), (1, 10)]);
    assert_eq!(fake.found(&[1], Some("2,0")), [(1, 10)]);
    let names = Some("GPU-bb,GPU-aa11-2,MIG-whole");
    assert_eq!(fake.found(all, names), [(0, 12), (1, 11), (2, 12)]);
    // A beginning that two names have, names of nothing, and what hides all GPUs.
    for none in ["GPU-aa", "GPU-cc", "MIG-other", "7", "-1", "", "no"] {
        assert!(fake.open(all, Some(none)).is_none(), "{none}");
    }
}

#[test]
fn a_library_that_cannot_be_used_is_none() {
    let absent = Path::new("/nowhere/libnvidia-ml.so.1");
    assert!(NvidiaGpus::open_library(absent, &[0], None).is_none());
    let refused = Fake::build("refused", &["-DINIT=9"]);
    assert!(refused.open(&[0], None).is_none());
    let old = Fake::build("old", &["-DWITHOUT_POWER"]);
    assert!(old.open(&[0], None).is_none());
}

#[test]
fn the_library_is_ended_as_often_as_it_is_begun() {
    let fake = Fake::build("ended", &[]);
    // SAFETY: the library is the test's own, and so is the function.
    let library = unsafe { Library::new(&fake.0) }.unwrap();
    let begun = || {
        // SAFETY: as above.
        let function = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"fake_begun\0") };
        // SAFETY: as above.
        unsafe { function.unwrap()() }
    };
    let gpus = fake.open(&[0], None);
    assert_eq!(begun(), 1);
    drop(gpus);
    assert!(fake.open(&[9], None).is_none());
    assert_eq!(begun(), 0);
}
