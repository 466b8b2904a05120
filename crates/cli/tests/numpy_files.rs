//! Training files on arrays that `NumPy` saved.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use phalanx_testkit::Scratch;

/// Trains on data for one epoch in a folder with the golden arrays.
fn train(folder: &Path, data: &str) -> Output {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/numpy");
    for name in ["plain.npz", "fortran.npy"] {
        fs::copy(golden.join(name), folder.join(name)).unwrap();
    }
    let text = format!(
        "data: {data}\nmodel: [flatten, {{dense: {{units: 1}}}}]\noptimizer: sgd\n\
         loss: mean_squared_error\nfit: {{epochs: 1, batch_size: 2}}\noutput: out\n"
    );
    fs::write(folder.join("t.yaml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command
        .args(["train", "t.yaml"])
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn an_archive_trains() {
    let folder = Scratch::temporary("npz");
    let data = "{numpy: {file: plain.npz, input: x, label: y}, label_type: value}";
    let done = train(&folder, data);
    let (out, told) = (done.stdout, String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{told}");
    let trained = String::from_utf8_lossy(&out);
    assert!(trained.contains("2 examples"), "{trained}");
    assert!(folder.join("out/model").is_dir());
}

#[test]
fn mistakes_in_arrays_say_what_they_have() {
    let folder = Scratch::temporary("arrays");
    for (data, expected) in [
        ("{numpy: {input: fortran.npy}}", "lacks the key `label`"),
        (
            "{numpy: {file: plain.npz, input: x_train, label: y}}",
            "has no array `x_train`; its arrays are x, y",
        ),
        (
            "{numpy: {input: fortran.npy, label: fortran.npy}}",
            "expected one number for each example, [2]; of shares for each class take the largest by argmax",
        ),
        (
            "{numpy: {file: fortran.npy, input: x, label: y}}",
            "check that this is a .npz file",
        ),
        (
            "{numpy: {input: plain.npz, label: fortran.npy}}",
            "check that this is a .npy file",
        ),
    ] {
        let done = train(&folder, data);
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{data}: {told}");
        assert!(told.contains(expected), "{data}: {told}");
    }
}
