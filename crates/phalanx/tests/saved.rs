//! Saved models: what is loaded predicts as what was saved, and what is no saved model is refused.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use phalanx::Error;
use phalanx::prelude::*;
use phalanx_graph::{DType, Shape, Tensor};
use phalanx_testkit::Scratch;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};
use serde_json::{Value, json};

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("saved-{name}"))
}

const MODEL: &str = "model.json";
const WEIGHTS: &str = "weights.safetensors";

/// Values that differ from one another, the same in every run.
fn numbers(dims: &[usize], seed: u32) -> HostTensor {
    let count: usize = dims.iter().product();
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24) - 0.5
    };
    let values: Vec<f32> = (0..count).map(|_| next() as f32).collect();
    HostTensor::new(dims.to_vec(), &values)
}

fn small() -> Model {
    let stack = Sequential::new([3]).add(Dense::new(2).activation(relu));
    stack.add(Dense::new(1)).build().unwrap()
}

fn small_saved() -> SavedModel {
    let model = small();
    let values = model.init(7).unwrap();
    SavedModel::new(model, values).unwrap()
}

fn assert_same(one: &SavedModel, other: &SavedModel) {
    assert_eq!(one.model().config(), other.model().config());
    assert_eq!(one.model().variables(), other.model().variables());
    assert_eq!(one.values(), other.values());
}

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

#[test]
fn a_trained_stack_predicts_the_same_bits_after_loading() {
    let scratch = scratch("stack");
    let strategy = OneDeviceStrategy::new().unwrap();
    let model = Sequential::new([8, 8, 1])
        .add(Rescaling::new(1.0 / 3.0))
        .add(Conv2d::new(4, 3).activation(Activation::LeakyRelu {
            negative_slope: 0.1,
        }))
        .add(BatchNorm::new())
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.3))
        .add(Dense::new(3));
    let compile = || Compile {
        optimizer: Adam::new(1e-2).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let x = numbers(&[20, 8, 8, 1], 1);
    let labels: Vec<i32> = (0..20).map(|row| row % 3).collect();
    let y = HostTensor::new([20], &labels);
    let batches = Dataset::from_arrays(x.clone(), y).unwrap().batch(5);
    let mut trainer = strategy.compile(model, compile()).unwrap();
    trainer.fit(&batches, quiet(2)).unwrap();
    let path = scratch.join("digits.phx");
    trainer.save(&path).unwrap();

    let saved = SavedModel::load(&path).unwrap();
    assert_same(&saved, &trainer.saved_model().unwrap());
    // Training moved them, the moving statistics among them.
    for (name, first) in saved
        .model()
        .variables()
        .iter()
        .zip(saved.model().init(0).unwrap())
    {
        assert_ne!(saved.value(&name.name).unwrap(), &first, "{}", name.name);
    }
    let mut again = strategy.compile(saved, compile()).unwrap();
    let (before, after) = (
        trainer.predict_on_batch(std::slice::from_ref(&x)).unwrap(),
        again.predict_on_batch(&[x]).unwrap(),
    );
    assert_eq!(before, after);
    assert_eq!(
        trainer.evaluate(&batches).unwrap().to_string(),
        again.evaluate(&batches).unwrap().to_string()
    );
}

/// Two inputs through one shared layer, a model inside, a frozen layer, two outputs.
fn branched() -> Model {
    let inner = Sequential::new([4]).add(Dense::new(4).activation(tanh));
    let mut net = Network::new();
    let left = net.input(Input::new([5]).named("left"));
    let right = net.input(Input::new([5]).named("right"));
    let shared = net.layer(Dense::new(4).named("shared"));
    let (one, two) = (net.call(shared, &[left]), net.call(shared, &[right]));
    let inside = net.add(inner.build().unwrap(), &[one]);
    let sum = net.add(Add, &[inside, two]);
    let frozen = Dense::new(1).named("frozen").trainable(false);
    let outputs = [net.add(frozen, &[sum]), net.add(Dense::new(2), &[sum])];
    net.build(&[left, right], &outputs).unwrap()
}

#[test]
fn a_trained_network_predicts_the_same_bits_after_loading() {
    let scratch = scratch("network");
    let strategy = OneDeviceStrategy::new().unwrap();
    let compile = || Compile {
        optimizer: RmsProp::new(1e-2).into(),
        loss: Losses::each([MeanSquaredError.into(), MeanSquaredError.into()]),
        ..Compile::default()
    };
    let x = vec![numbers(&[12, 5], 1), numbers(&[12, 5], 2)];
    let y = vec![numbers(&[12, 1], 3), numbers(&[12, 2], 4)];
    let batches = Dataset::from_arrays(x.clone(), y).unwrap().batch(4);
    let mut trainer = strategy.compile(branched(), compile()).unwrap();
    trainer.fit(&batches, quiet(2)).unwrap();
    let path = scratch.join("two.phx");
    trainer.save(&path).unwrap();
    let saved = SavedModel::load(&path).unwrap();
    assert_same(&saved, &trainer.saved_model().unwrap());
    assert!(
        !saved
            .model()
            .variables()
            .iter()
            .any(|v| v.trainable && v.name.starts_with("frozen/"))
    );
    let mut again = strategy.compile(saved, compile()).unwrap();
    let (before, after) = (
        trainer.predict_on_batch(&x).unwrap(),
        again.predict_on_batch(&x).unwrap(),
    );
    assert_eq!(before, after);
    assert_eq!(before.len(), 2);
}

#[test]
fn training_goes_on_from_saved_values_as_if_it_had_not_stopped() {
    let scratch = scratch("resume");
    let strategy = OneDeviceStrategy::new().unwrap();
    // SGD carries nothing but the variables from step to step.
    let compile = || Compile {
        optimizer: Sgd::new(0.1).into(),
        loss: MeanSquaredError.into(),
        seed: 3,
        ..Compile::default()
    };
    let data = Dataset::from_arrays(numbers(&[16, 3], 1), numbers(&[16, 1], 2)).unwrap();
    let batches = data.shuffle(5).batch(4);
    let mut whole = strategy.compile(small(), compile()).unwrap();
    whole.fit(&batches, quiet(4)).unwrap();

    let mut first = strategy.compile(small(), compile()).unwrap();
    first.fit(&batches, quiet(2)).unwrap();
    let path = scratch.join("half.phx");
    first.save(&path).unwrap();
    let another_seed = Compile {
        seed: 4,
        ..compile()
    };
    let mut second = strategy
        .compile(SavedModel::load(&path), another_seed)
        .unwrap();
    let history = second.fit(&batches, quiet(4).initial_epoch(2)).unwrap();
    assert_eq!(history.epochs.len(), 2);
    assert_eq!(whole.variables().unwrap(), second.variables().unwrap());
    assert_ne!(whole.variables().unwrap(), first.variables().unwrap());
}

/// A layer of a user, with state of every element type.
#[derive(Debug)]
struct Everything;

impl Layer for Everything {
    fn kind(&self) -> &'static str {
        "everything"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        for dtype in DType::ALL {
            let shape = Shape::new(dtype, [2, 3]);
            let _ = cx.state(dtype.name(), shape, &Initializer::Zeros);
        }
        let _ = cx.state("scalar", Shape::scalar(DType::F64), &Initializer::Zeros);
        inputs[0].clone()
    }
}

/// A layer of a user that claims to be of a kind of the library.
#[derive(Debug)]
struct Pretender;

impl Layer for Pretender {
    fn kind(&self) -> &'static str {
        "dense"
    }

    fn config(&self) -> Value {
        json!({"units": 3, "thickness": 1})
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        inputs[0].clone()
    }
}

fn everything() -> SavedModel {
    let stack = Sequential::new([3]).add(Everything).add(Dense::new(1));
    let model = stack.build().unwrap();
    let value = |variable: &Variable| {
        let shape = &variable.shape;
        let bytes: Vec<u8> = match shape.dtype {
            DType::Bool => vec![1, 0, 0, 1, 1, 0],
            _ => (0..shape.byte_len()).map(|i| (i * 37) as u8).collect(),
        };
        HostTensor::from_bytes(shape.clone(), &bytes).unwrap()
    };
    let values = model.variables().iter().map(value).collect();
    SavedModel::new(model, values).unwrap()
}

#[test]
fn every_element_type_and_a_layer_of_a_user_come_back() {
    let scratch = scratch("types");
    let (saved, path) = (everything(), scratch.join("all.phx"));
    saved.save(&path).unwrap();
    let registry = Registry::standard()
        .with("everything", |_| Ok(Everything))
        .unwrap();
    assert_same(&SavedModel::load_with(&path, &registry).unwrap(), &saved);
    let error = SavedModel::load(&path).unwrap_err().to_string();
    for part in ["unknown layer `everything`", "SavedModel::load_with", MODEL] {
        assert!(error.contains(part), "{error}");
    }
    // As the crate of the format reads it: the file is one of that format.
    let bytes = fs::read(path.join(WEIGHTS)).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), saved.values().len());
    for (variable, value) in saved.model().variables().iter().zip(saved.values()) {
        let tensor = tensors.tensor(&variable.name).unwrap();
        assert_eq!(
            (tensor.shape(), tensor.data()),
            (value.dims(), value.bytes())
        );
        let start = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert_eq!(
            start % value.dtype().size(),
            0,
            "{} is aligned",
            variable.name
        );
    }
}

#[test]
fn values_that_are_no_numbers_are_kept() {
    let scratch = scratch("nan");
    let saved = small_saved();
    let mut values = saved.values().to_vec();
    values[0] = HostTensor::new(
        [3, 2],
        &[f32::NAN, f32::INFINITY, -0.0, 1e-45, f32::MAX, f32::MIN],
    );
    let saved = SavedModel::new(small(), values).unwrap();
    saved.save(scratch.join("nan.phx")).unwrap();
    let again = SavedModel::load(scratch.join("nan.phx")).unwrap();
    assert_eq!(again.values(), saved.values());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn settings_come_back_to_the_last_bit(rate in 0.0f64..=1.0, scale in any::<f64>(), epsilon in 0.0f64..1.0) {
        let stack = Sequential::new([3])
            .add(Rescaling::new(scale))
            .add(BatchNorm::new().epsilon(epsilon))
            .add(Dropout::new(rate));
        let Ok(model) = stack.build() else {
            return Ok(());
        };
        let scratch = scratch("settings");
        let saved = SavedModel::new(model.clone(), model.init(0).unwrap()).unwrap();
        saved.save(scratch.join("m")).unwrap();
        let again = SavedModel::load(scratch.join("m")).unwrap();
        prop_assert!(again.model().config() == model.config());
    }
}

#[test]
fn values_of_other_shapes_are_refused() {
    let values = small().init(0).unwrap();
    let fewer = SavedModel::new(small(), values[1..].to_vec())
        .unwrap_err()
        .to_string();
    assert!(
        fewer.contains("has 4 variables, got 3 values; give"),
        "{fewer}"
    );
    let turned: Vec<HostTensor> = values.into_iter().rev().collect();
    let error = SavedModel::new(small(), turned).unwrap_err().to_string();
    let expected = "variable `dense/kernel` of model `sequential` is f32[3,2], got a value that is f32[1]; give";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_model_that_could_not_be_read_back_is_not_saved() {
    let scratch = scratch("unreadable");
    let model = Sequential::new([3]).add(Pretender).build().unwrap();
    let saved = SavedModel::new(model.clone(), model.init(0).unwrap()).unwrap();
    let error = saved.save(scratch.join("m.phx")).unwrap_err().to_string();
    assert!(
        error.contains("could not be read back") && error.contains("`thickness`"),
        "{error}"
    );
    assert!(scratch.names().is_empty());
}

#[test]
fn a_save_replaces_a_saved_model_and_leaves_nothing_else() {
    let scratch = scratch("replace");
    let path = scratch.join("deep/er/m.phx");
    small_saved().save(&path).unwrap();
    let other = everything();
    other.save(&path).unwrap();
    let stack = Sequential::new([2]).add(Dense::new(2)).build().unwrap();
    let last = SavedModel::new(stack.clone(), stack.init(1).unwrap()).unwrap();
    last.save(scratch.join("deep/er/m.phx/")).unwrap();
    assert_same(&SavedModel::load(&path).unwrap(), &last);
    let entries = fs::read_dir(scratch.join("deep/er")).unwrap();
    assert_eq!(entries.count(), 1);
    // An empty directory is as good as none, and a link is followed.
    fs::create_dir(scratch.join("empty.phx")).unwrap();
    last.save(scratch.join("empty.phx")).unwrap();
    std::os::unix::fs::symlink(&path, scratch.join("link.phx")).unwrap();
    small_saved().save(scratch.join("link.phx")).unwrap();
    assert_same(&SavedModel::load(&path).unwrap(), &small_saved());
    assert!(
        fs::symlink_metadata(scratch.join("link.phx"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(scratch.names(), ["deep", "empty.phx", "link.phx"]);
}

/// What stands in the way of a save, and what the error names.
type Obstacle = (&'static str, fn(&Path), &'static [&'static str]);

#[rustfmt::skip]
const OBSTACLES: [Obstacle; 7] = [
    ("a file", |path| fs::write(path, "mine").unwrap(), &["is no directory", "save under another name"]),
    ("a directory with a file", |path| { fs::create_dir(path).unwrap(); fs::write(path.join("thesis.tex"), "mine").unwrap(); }, &["`thesis.tex`", "save under another name"]),
    ("a saved model with notes", |path| { small_saved().save(path).unwrap(); fs::write(path.join("notes"), "mine").unwrap(); }, &["`notes`", "move it away"]),
    ("a model of another program", |path| { fs::create_dir(path).unwrap(); fs::write(path.join(MODEL), "{\"format\": \"keras\"}").unwrap(); }, &["no `model.json` written by phalanx"]),
    ("weights alone", |path| { fs::create_dir(path).unwrap(); fs::write(path.join(WEIGHTS), "mine").unwrap(); }, &["no `model.json` written by phalanx"]),
    ("a directory called model.json", |path| fs::create_dir_all(path.join(MODEL)).unwrap(), &["`model.json` in it"]),
    ("a link to nothing", |path| std::os::unix::fs::symlink("nowhere", path).unwrap(), &["follow the link", "No such file"]),
];

#[test]
fn what_is_no_saved_model_is_not_replaced() {
    for (what, place, parts) in OBSTACLES {
        let scratch = scratch("obstacle");
        let path = scratch.join("m.phx");
        place(&path);
        let before = snapshot(&path);
        let error = small_saved().save(&path).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{what}: {error}");
        }
        assert_eq!(snapshot(&path), before, "{what}");
        assert_eq!(scratch.names(), ["m.phx"], "{what}");
    }
    for path in ["", "/", "..", "a/.."] {
        let error = small_saved().save(path).unwrap_err().to_string();
        assert!(
            error.contains("give a name, such as `digits.phx`"),
            "{path:?}: {error}"
        );
    }
    let scratch = scratch("obstacle-above");
    fs::write(scratch.join("file"), "mine").unwrap();
    let error = small_saved()
        .save(scratch.join("file/m.phx"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("file"), "{error}");
    assert_eq!(fs::read(scratch.join("file")).unwrap(), b"mine");
}

/// Names and contents of a directory, or of a file.
fn snapshot(path: &Path) -> Vec<(String, Option<Vec<u8>>)> {
    let Ok(entries) = fs::read_dir(path) else {
        return vec![(String::new(), fs::read(path).ok())];
    };
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read(path).ok()))
        .collect();
    found.sort();
    found
}

#[test]
fn a_failed_save_leaves_the_model_before_it_and_nothing_else() {
    let scratch = scratch("full");
    let path = scratch.join("m.phx");
    small_saved().save(&path).unwrap();
    let before = snapshot(&path);
    // A name so long that the directory for the new one cannot be made.
    let long = scratch.join("x".repeat(250));
    assert!(matches!(small_saved().save(long), Err(Error::Io { .. })));
    assert_eq!(snapshot(&path), before);
    assert_eq!(scratch.names(), ["m.phx"]);
}

/// How staging directories name the processes of this machine.
fn numbering() -> u32 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.as_os_str().as_encoded_bytes();
    crc32c::crc32c_append(crc32c::crc32c(&boot), namespace)
}

#[test]
fn leftovers_of_a_crash_are_ignored_and_then_removed() {
    let scratch = scratch("crash");
    let path = scratch.join("m.phx");
    let leave = |name: &str, age: u64| {
        let folder = scratch.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(MODEL), "{\"form").unwrap();
        let then = SystemTime::now() - Duration::from_secs(age);
        for path in [folder.join(MODEL), folder] {
            File::open(path).unwrap().set_modified(then).unwrap();
        }
    };
    leave(".m.phx.saving-1-0", 7200);
    // No process has so large a number: of this machine, and of another on the same disk, where it may run.
    let here = numbering();
    leave(&format!(".m.phx.saving-{here:08x}-4294967295-0"), 120);
    let fresh = format!(".m.phx.saving-{here:08x}-4294967295-1");
    leave(&fresh, 30);
    let elsewhere = format!(".m.phx.saving-{:08x}-4294967295-0", !here);
    leave(&elsewhere, 120);
    // Of a save that may still run, of another model, and what is not from a save.
    let running = format!(".m.phx.saving-{here:08x}-{}-900", std::process::id());
    leave(&running, 120);
    leave(".n.phx.saving-1-0", 7200);
    leave(".m.phx.saving-3-0", 7200);
    let notes = scratch.join(".m.phx.saving-3-0/notes");
    fs::write(&notes, "mine").unwrap();
    let folder = File::open(scratch.join(".m.phx.saving-3-0")).unwrap();
    folder
        .set_modified(SystemTime::now() - Duration::from_secs(7200))
        .unwrap();

    let error = SavedModel::load(&path).unwrap_err().to_string();
    assert!(error.contains("there is no saved model at"), "{error}");
    small_saved().save(&path).unwrap();
    assert_same(&SavedModel::load(&path).unwrap(), &small_saved());
    let mut left = [
        &running,
        ".m.phx.saving-3-0",
        &fresh,
        &elsewhere,
        ".n.phx.saving-1-0",
        "m.phx",
    ];
    left.sort_unstable();
    assert_eq!(scratch.names(), left);
    assert_eq!(fs::read(notes).unwrap(), b"mine");
}

#[test]
fn what_a_crash_left_of_weights_alone_is_removed_by_the_next_save() {
    let scratch = scratch("crash-weights");
    let leave = |name: &str| {
        let folder = scratch.join(format!(".{name}.saving-1-0"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(WEIGHTS), "half").unwrap();
        let then = SystemTime::now() - Duration::from_secs(7200);
        for path in [folder.join(WEIGHTS), folder] {
            File::open(path).unwrap().set_modified(then).unwrap();
        }
    };
    let names = ["m.keras", "m.safetensors", "m.weights.h5"];
    names.iter().copied().for_each(leave);
    let saved = small_saved();
    saved.save_keras(scratch.join(names[0])).unwrap();
    saved.save_weights(scratch.join(names[1])).unwrap();
    saved.save_weights(scratch.join(names[2])).unwrap();
    assert_eq!(scratch.names(), names);
}

#[test]
fn a_crash_between_two_renames_is_mended() {
    let scratch = scratch("aside");
    let path = scratch.join("m.phx");
    small_saved().save(&path).unwrap();
    fs::rename(&path, scratch.join(".m.phx.before")).unwrap();
    assert_same(&SavedModel::load(&path).unwrap(), &small_saved());
    assert_eq!(scratch.names(), [".m.phx.before"]);
    small_saved().save(&path).unwrap();
    assert_eq!(scratch.names(), ["m.phx"]);
    assert_same(&SavedModel::load(&path).unwrap(), &small_saved());
}

#[test]
fn saves_to_one_name_at_once_leave_one_whole_model() {
    const LOADS: usize = 2000;
    let scratch = scratch("race");
    let path = scratch.join("m.phx");
    // Of several sizes: the files of two saves do not fit together.
    let sized = |units: usize| {
        let model = Sequential::new([3]).add(Dense::new(units)).build().unwrap();
        let values = model.init(0).unwrap();
        SavedModel::new(model, values).unwrap()
    };
    let stop = AtomicBool::new(false);
    let save = |units: usize| {
        let saved = sized(units);
        saved.save(&path).unwrap();
        while !stop.load(Ordering::Relaxed) {
            saved.save(&path).unwrap();
        }
    };
    small_saved().save(&path).unwrap();
    std::thread::scope(|scope| {
        for units in 1..4 {
            scope.spawn(move || save(units));
        }
        for _ in 0..LOADS {
            let loaded = SavedModel::load(&path);
            stop.store(loaded.is_err(), Ordering::Relaxed);
            loaded.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let last = SavedModel::load(&path).unwrap();
    let is_one = |units| sized(units).values() == last.values();
    assert!((1..4).any(is_one));
    assert_eq!(scratch.names(), ["m.phx"]);
}

/// The fuzz target starts from models, not from what is refused at once.
#[test]
fn seeds_of_the_fuzz_target_are_models() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/model_dir");
    for name in ["stack", "network"] {
        let seed = fs::read(seeds.join(name)).unwrap();
        let separator = b"\n---\n";
        let mut windows = seed.windows(separator.len());
        let end = windows.position(|window| window == separator).unwrap();
        let weights = &seed[end + separator.len()..];
        SavedModel::from_bytes(&seed[..end], weights, &Registry::standard()).unwrap();
    }
}
