//! The binary as a user meets it: output, messages and exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use phalanx_testkit::Scratch;

fn folder(name: &str) -> Scratch {
    Scratch::temporary(&format!("cli-{name}"))
}

/// A run with an empty cache and no site-packages in sight.
fn phalanx(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command
        .args(arguments)
        .current_dir(home)
        .stdin(Stdio::null());
    command.env_clear().env("HOME", home).env("PATH", home);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn expect(output: &Output, code: i32, stdout: &[&str], stderr: &[&str]) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    for part in stdout {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    for part in stderr {
        assert!(err.contains(part), "no {part:?} in\n{err}");
    }
}

#[test]
fn version_and_help_name_what_matters() {
    let home = folder("version");
    let version = phalanx(&home, &["--version"]);
    expect(
        &version,
        0,
        &[
            "phalanx 0.",
            "lammps-jax-pjrt-cpu==0.11.2",
            std::env::consts::ARCH,
        ],
        &[],
    );
    let help = phalanx(&home, &["--help"]);
    expect(
        &help,
        0,
        &["doctor", "--offline", "--plugin", "--progress", "--quiet"],
        &[],
    );
}

#[test]
fn wrong_usage_ends_with_2_and_a_hint() {
    let home = folder("usage");
    expect(&phalanx(&home, &["devises"]), 2, &[], &["'devices'"]);
    expect(
        &phalanx(&home, &["devices", "--platform", "vpu"]),
        2,
        &[],
        &["use one of cpu, cuda"],
    );
    expect(
        &phalanx(&home, &["plugin", "install", "cuda"]),
        2,
        &[],
        &["pip install 'jax[cuda13]'"],
    );
    expect(&phalanx(&home, &[]), 2, &[], &["Usage"]);
}

#[test]
fn no_plugin_and_offline_is_said_and_ends_with_3() {
    let home = folder("offline");
    expect(
        &phalanx(&home, &["devices", "--offline"]),
        3,
        &[],
        &[
            "--offline forbids the download",
            "phalanx plugin install cpu",
        ],
    );
    expect(
        &phalanx(&home, &["plugin", "install", "cpu", "--offline"]),
        3,
        &[],
        &["--offline forbids"],
    );
    expect(
        &phalanx(&home, &["plugin", "where"]),
        3,
        &[],
        &["no cpu plugin was found; looked at:", "PHALANX_PJRT_CPU"],
    );
    expect(
        &phalanx(&home, &["plugin", "list"]),
        0,
        &[
            "cpu     not found; to install: phalanx plugin install cpu",
            "kernels not found; to install: phalanx plugin install kernels",
        ],
        &[],
    );
    expect(
        &phalanx(&home, &["plugin", "install", "kernels", "--offline"]),
        3,
        &[],
        &["--offline forbids", "PHALANX_ONEDNN_LIBRARY"],
    );
    expect(
        &phalanx(&home, &["plugin", "where", "kernels"]),
        3,
        &[],
        &["onednn was not found; looked at:", "the per-user cache: "],
    );
    expect(
        &phalanx(&home, &["plugin", "where", "kernel"]),
        2,
        &[],
        &["unknown platform `kernel`", "or kernels"],
    );
    expect(
        &phalanx(&home, &["doctor", "--offline"]),
        3,
        &["fail  plugin", "next: run `phalanx plugin install cpu`"],
        &["not ready"],
    );
}

#[test]
fn a_missing_plugin_is_installed_with_one_line_and_a_missing_pip_is_said() {
    let home = folder("nopip");
    let output = phalanx(&home, &["devices"]);
    expect(
        &output,
        3,
        &[],
        &[
            "installing the cpu plugin, once: lammps-jax-pjrt-cpu==0.11.2",
            "install python3 with pip",
        ],
    );
    let quiet = phalanx(&home, &["devices", "--quiet"]);
    assert!(!text(&quiet.stderr).contains("installing"));
}

#[test]
fn python_files_in_the_working_directory_are_not_run() {
    let home = folder("shadow");
    for name in ["pip.py", "random.py", "types.py", "zipfile.py"] {
        let marker = home.join("run").display().to_string();
        std::fs::write(home.join(name), format!("open({marker:?}, 'w')")).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut install = command(&home, &["plugin", "install", "cpu"]);
    // Pip finds no package, at once.
    install.env("PATH", path).env("PIP_NO_INDEX", "1");
    expect(&install.output().unwrap(), 3, &[], &["pip"]);
    assert!(!home.join("run").exists());
}

#[test]
fn a_cache_that_others_can_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let home = folder("open");
    let found = phalanx(&home, &["plugin", "where"]);
    let looked = text(&found.stderr);
    let path = looked
        .lines()
        .find_map(|line| line.trim().strip_prefix("the per-user cache: "));
    let library = PathBuf::from(path.unwrap());
    let folder = library.parent().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(&library, "not the plugin").unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let told = [
        "is not used",
        "can be written to by others (mode 777)",
        "chmod go-w",
    ];
    expect(&phalanx(&home, &["plugin", "where"]), 3, &[], &told);
    expect(&phalanx(&home, &["devices"]), 3, &[], &told);
}

#[test]
fn a_path_that_is_no_plugin_is_refused_not_skipped() {
    let home = folder("noplugin");
    let file = home.join("text.so");
    std::fs::write(&file, "not a library").unwrap();
    let file = file.to_str().unwrap();
    expect(
        &phalanx(&home, &["devices", "--plugin", file]),
        3,
        &[],
        &[file, "next: "],
    );
    expect(
        &phalanx(&home, &["devices", "--plugin", "/nowhere.so"]),
        3,
        &[],
        &["/nowhere.so, is not a file"],
    );
    expect(
        &phalanx(&home, &["doctor", "--plugin", file]),
        3,
        &["fail  plugin"],
        &["1 check failed"],
    );
}

#[test]
fn the_doctor_tells_what_a_training_goes_by_and_no_secret() {
    let home = folder("variables");
    let doctor = |arguments: &[&str]| {
        let mut doctor = command(&home, &[&["doctor", "--offline"], arguments].concat());
        doctor.env("PHALANX_KERNELS", "off");
        doctor.env("PHALANX_TOKEN", "hunter2").output().unwrap()
    };
    let output = doctor(&[]);
    let told = [
        "ok    worker      the only one\n",
        "ok    variable    PHALANX_KERNELS=off\n",
        "ok    variable    PHALANX_TOKEN is set\n",
    ];
    expect(&output, 3, &told, &["not ready"]);
    let lines = doctor(&["--progress", "json"]);
    for output in [&output, &lines] {
        assert!(!text(&output.stdout).contains("hunter2"));
    }
    let checks = text(&lines.stdout).lines().map(|line| {
        let check: serde_json::Value = serde_json::from_str(line).unwrap();
        check["state"].as_str().unwrap().to_owned()
    });
    let states: Vec<String> = checks.collect();
    let lines = text(&output.stdout).lines();
    let lines = lines.filter(|line| !line.starts_with(' '));
    assert_eq!(states.len(), lines.count());
    assert!(states.contains(&"fail".to_owned()));
}

#[test]
fn completions_of_each_shell_name_the_commands() {
    let home = folder("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        expect(
            &phalanx(&home, &["completions", shell]),
            0,
            &["doctor", "offline"],
            &[],
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_panic_and_a_full_disk_is_an_error() {
    let home = folder("pipe");
    let mut child = command(&home, &["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    expect(&child.wait_with_output().unwrap(), 0, &[], &[]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = command(&home, &["plugin", "list"])
        .stdout(full)
        .output()
        .unwrap();
    expect(&output, 1, &[], &["cannot write to standard output"]);
}

#[test]
fn rows_of_texts_and_values_are_inspected_as_they_are_written() {
    let home = folder("fields");
    let inspect = |rows: &str| {
        std::fs::write(home.join("rows.csv"), rows).unwrap();
        phalanx(&home, &["data", "inspect", "rows.csv", "--rows", "2"])
    };
    let texts = inspect("review,stars,hour\n\"good, \"\"fine\"\"\",2, 1.50\n,?,3\nbad,1,4\n");
    assert_eq!(
        text(&texts.stdout),
        "csv: 3 examples\n  0: review: \"good, \\\"fine\\\"\", stars: 2, hour: 1.50\n  1: review: missing, stars: missing, hour: 3\n"
    );
    let values = inspect("a,price\n1,0.5\n2,-1\n");
    let expected = "csv: 2 examples\n  0: a: 1, price: 0.5\n  1: a: 2, price: -1\n";
    assert_eq!(text(&values.stdout), expected);
    // What a column of numbers holds beside them is a mistake, with or without texts in others.
    for (rows, place) in [
        ("a,b\n1,0\nx,1\n", "line 3, column 1 (\"a\"): found \"x\""),
        ("a,b\n1,x\ny,z\n", "line 2, column 2 (\"b\"): found \"x\""),
        ("a,b\n1,0\n?,1\n", "line 3, column 1 (\"a\"): found"),
    ] {
        let wrong = inspect(rows);
        let error = text(&wrong.stderr);
        assert!(!wrong.status.success() && error.contains(place), "{error}");
    }
}

#[test]
fn parquet_files_are_inspected_whatever_their_columns_hold() {
    let home = folder("parquet");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/parquet");
    for name in ["kinds.parquet", "nulls.parquet", "index.parquet"] {
        std::fs::copy(golden.join(name), home.join(name)).unwrap();
    }
    let inspect = |file: &str| phalanx(&home, &["data", "inspect", file, "--rows", "3"]);
    let kinds = inspect("kinds.parquet");
    let time = "when: \"INT64 (Timestamp";
    let shown = text(&kinds.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        (lines.len(), lines[0]),
        (4, "parquet: 3 examples"),
        "{}",
        text(&kinds.stderr)
    );
    for (line, start) in lines[1..].iter().zip([
        "  0: name: \"Ann\", flag: 1, size: 0.5, ",
        "  1: name: missing, flag: missing, size: 1e-5, ",
        "  2: name: \"Zoë\", flag: 0, size: 3.0, ",
    ]) {
        assert!(line.starts_with(start) && line.contains(time), "{line}");
        assert!(
            line.contains("price: \"") && line.contains("tags.list.element: \"BYTE_ARRAY"),
            "{line}"
        );
    }
    let nulls = inspect("nulls.parquet");
    let expected = "parquet: 8 examples\n  0: x: 0.0, text: \"a\", label: 0\n";
    assert!(
        text(&nulls.stdout).starts_with(expected),
        "{}",
        text(&nulls.stdout)
    );
    // Numbers alone as before.
    let numbers = inspect("index.parquet");
    assert!(
        text(&numbers.stdout).contains("f32[3] [0.5, 3.0, 2.0]"),
        "{}",
        text(&numbers.stdout)
    );
    std::fs::write(home.join("cut.parquet"), b"PAR1").unwrap();
    expect(
        &inspect("cut.parquet"),
        1,
        &[],
        &["expected a parquet file"],
    );
}

#[test]
fn arrays_of_numpy_are_inspected_by_rows_and_archives_by_their_arrays() {
    let home = folder("numpy");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/numpy");
    for name in ["fortran.npy", "plain.npz", "scalar.npy"] {
        std::fs::copy(golden.join(name), home.join(name)).unwrap();
    }
    let data = |what: &str, file: &str| phalanx(&home, &["data", what, file]);
    let rows = data("inspect", "fortran.npy");
    assert_eq!(
        text(&rows.stdout),
        "numpy: 2 examples in 1 file\n  0: i32[3,4] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.…\n  1: i32[3,4] [12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0, 21.0,…\n"
    );
    let arrays = data("inspect", "plain.npz");
    assert_eq!(
        text(&arrays.stdout),
        "numpy: 2 arrays\n  0: x: f32[2,3,4] [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.12…\n  1: y: i64[2] [3.0, -1.0]\n"
    );
    let bench = phalanx(&home, &["data", "bench", "plain.npz", "--seconds", "1"]);
    let said = text(&bench.stdout);
    assert!(
        said.contains(" arrays in ") && said.contains(" s on one thread: "),
        "{said}"
    );
    expect(&data("inspect", "scalar.npy"), 1, &[], &["is the scalar"]);
    std::fs::write(home.join("cut.npy"), b"\x93NUMPY").unwrap();
    std::fs::write(home.join("cut.npz"), b"PK").unwrap();
    for file in ["cut.npy", "cut.npz"] {
        expect(&data("inspect", file), 1, &[], &[file]);
    }
}

#[test]
fn a_folder_is_its_images_or_its_files_of_one_format() {
    let home = folder("of-data");
    std::fs::create_dir_all(home.join("shards")).unwrap();
    std::fs::write(home.join("rows.csv"), "1,2,0\n3,4,1\n").unwrap();
    let shard = [
        "data", "shard", "rows.csv", "--to", "shards", "--shards", "1",
    ];
    assert!(phalanx(&home, &shard).status.success());
    for (file, line) in [("shards/README.txt", "first"), ("shards/a.csv", "5,6,1")] {
        std::fs::write(home.join(file), format!("{line}\n")).unwrap();
    }
    for class in ["cat", "dog"] {
        std::fs::create_dir_all(home.join("pets").join(class)).unwrap();
        std::fs::write(home.join("pets").join(class).join("0.jpg"), "image").unwrap();
    }
    std::fs::write(home.join("pets/labels.csv"), "1,0\n").unwrap();
    std::fs::write(home.join("pets/notes.txt"), "note\n").unwrap();
    let first_line = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = phalanx(&home, &[&["data", "inspect"], &arguments[..]].concat());
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        shown.lines().next().unwrap().to_owned()
    };
    for (arguments, expected) in [
        ("shards --format tfrecord", "tfrecord: 2 examples in 1 file"),
        ("shards --format text", "text: 1 examples in 1 file"),
        ("shards", "csv: 1 examples"),
        ("pets", "images: 2 examples"),
        ("pets --format csv", "csv: 1 examples"),
    ] {
        assert_eq!(first_line(arguments), expected, "{arguments}");
    }
    std::fs::remove_file(home.join("shards/a.csv")).unwrap();
    assert_eq!(first_line("shards"), "tfrecord: 2 examples in 1 file");
    let bench = ["data", "bench", "shards", "--seconds", "0"];
    expect(&phalanx(&home, &bench), 0, &["0 examples"], &[]);
}

#[test]
fn images_that_are_left_out_are_told() {
    let home = folder("left-out");
    for (class, file) in [("a", "0.jpg"), ("b", "0.png"), ("b", "1.bmp")] {
        std::fs::create_dir_all(home.join("pictures").join(class)).unwrap();
        std::fs::write(home.join("pictures").join(class).join(file), "image").unwrap();
    }
    let told = ["warning: 1 images below pictures are left out"];
    for arguments in [
        &["data", "shard", "pictures", "--to", "out"][..],
        &["data", "inspect", "pictures"],
        &["data", "bench", "pictures", "--seconds", "0"],
    ] {
        expect(&phalanx(&home, arguments), 0, &[], &told);
    }
}

#[test]
fn made_up_rows_replace_no_file_unless_asked_to() {
    let home = folder("made-up");
    for made in ["clicks", "reviews"] {
        let make = |more: &[&str]| {
            let arguments = ["data", made, "--to", "rows.csv", "--count", "4"];
            phalanx(&home, &[&arguments[..], more].concat())
        };
        std::fs::write(home.join("rows.csv"), "mine").unwrap();
        let says = ["rows.csv is there already", "replace it with --overwrite"];
        expect(&make(&[]), 2, &[], &says);
        let read = || std::fs::read_to_string(home.join("rows.csv")).unwrap();
        assert_eq!(read(), "mine");
        expect(&make(&["--overwrite"]), 0, &["rows.csv"], &[]);
        assert!(read().lines().count() > 4);
    }
}

#[test]
fn data_are_inspected_and_sharded() {
    let home = folder("data");
    std::fs::write(home.join("rows.csv"), "a,b,label\n1,2,0\n3,4,1\n5,6,0\n").unwrap();
    let shard = phalanx(
        &home,
        &["data", "shard", "rows.csv", "--to", "out", "--shards", "2"],
    );
    assert!(shard.status.success(), "{}", text(&shard.stderr));
    assert_eq!(text(&shard.stdout), "3 examples in 2 files in out\n");
    let inspect = phalanx(&home, &["data", "inspect", "out/*.tfrecord", "--rows", "2"]);
    let expected = "tfrecord: 3 examples in 2 files\n  0: features: 2 float [1.0, 2.0], label: 1 int64 [0]\n  1: features: 2 float [5.0, 6.0], label: 1 int64 [0]\n";
    assert_eq!(text(&inspect.stdout), expected);
    std::fs::write(home.join("x.unknown"), "1").unwrap();
    let unknown = phalanx(&home, &["data", "inspect", "x.unknown"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("say it with --format"));
    let missing = phalanx(&home, &["data", "inspect", "none/*.tar"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("names no file"));
    // The length of the only record of the second file.
    let path = home.join("out/data-00001-of-00002.tfrecord");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let corrupt = phalanx(&home, &["data", "inspect", "out/*.tfrecord"]);
    let lost = format!(
        "tfrecord: 2 examples in 2 files\n  out/data-00001-of-00002.tfrecord: the {} bytes from byte 0 on are left out: corrupt record: the checksum",
        bytes.len()
    );
    let shown = text(&corrupt.stdout);
    assert!(
        shown.starts_with(&lost) && shown.contains("  1: features"),
        "{shown}"
    );
    assert_eq!(corrupt.status.code(), Some(1));
    assert!(text(&corrupt.stderr).contains("1 places of the data cannot be read"));
}
