//! Programs for serving: what is written answers as Keras and as `predict` when it is compiled anew, from the files alone.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use phalanx::engine::{Engine, EngineOptions, KernelsMode};
use phalanx::fit::{Compile, ServingOptions};
use phalanx::nn::{Cx, Dense, Input, Layer, Model, Policy, Rescaling, Sequential, gelu};
use phalanx::saved::SavedModel;
use phalanx::strategy::{OneDeviceStrategy, Strategy};
use phalanx_graph::op::CustomCall;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use phalanx_pjrt::{CompileOptions, ExecuteOptions, Platform};
use phalanx_testkit::{Scratch, assert_close, relative_difference};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::archives::{filled, models};
use super::oracle::{array, name, records, uniform};

/// The CPU without kernels of this library.
fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions {
            kernels: KernelsMode::Off,
            compile_cache: false,
            ..EngineOptions::default()
        };
        Engine::new(&options).unwrap()
    })
}

fn description(program: &Path) -> Value {
    let path = program.with_extension("mlir.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn shape(described: &Value) -> Shape {
    let dims = described["dims"].as_array().unwrap().iter();
    let dims: Vec<usize> = dims.map(|dim| dim.as_u64().unwrap() as usize).collect();
    let dtype = described["dtype"].as_str().unwrap();
    Shape::new(DType::from_name(dtype).unwrap(), dims)
}

/// What XLA computes that knows the files alone, with no options of this library.
fn served(program: &Path, inputs: &[HostTensor]) -> Vec<HostTensor> {
    let about = description(program);
    let file = program.with_file_name(about["weights"].as_str().unwrap());
    let file = fs::read(file).unwrap();
    let weights = SafeTensors::deserialize(&file).unwrap();
    let mut inputs = inputs.iter();
    let arguments = about["arguments"].as_array().unwrap().iter();
    let arguments = arguments.map(|argument| {
        let value = match argument["source"].as_str().unwrap() {
            "weights" => {
                let value = weights.tensor(argument["name"].as_str().unwrap());
                HostTensor::from_bytes(shape(argument), value.unwrap().data()).unwrap()
            }
            _ => inputs.next().unwrap().clone(),
        };
        assert_eq!(*value.shape(), shape(argument));
        engine().put_copy(0, &value).unwrap()
    });
    let arguments: Vec<_> = arguments.collect();
    let text = fs::read_to_string(program).unwrap();
    assert!(!text.contains("custom_call"));
    let compiled = engine().client().compile(&text, &CompileOptions::default());
    let arguments: Vec<_> = arguments.iter().collect();
    let ran = compiled
        .unwrap()
        .execute(&[&arguments], &ExecuteOptions::default());
    let outputs = ran.unwrap().outputs.remove(0);
    let results = about["results"].as_array().unwrap();
    assert_eq!(outputs.len(), results.len());
    let outputs = outputs.iter().zip(results);
    outputs
        .map(|(output, result)| engine().get(output, &shape(result)).unwrap())
        .collect()
}

pub(super) fn predicted(
    saved: &SavedModel,
    precision: Policy,
    inputs: &[HostTensor],
) -> Vec<HostTensor> {
    let compile = Compile {
        precision,
        ..Compile::default()
    };
    let strategy = OneDeviceStrategy::on(engine());
    let mut trainer = strategy.compile(saved.clone(), compile).unwrap();
    trainer.predict_on_batch(inputs).unwrap()
}

#[test]
fn keras_answers_as_programs_compiled_from_files_do() {
    let folder = Scratch::temporary("stablehlo-keras");
    let golden = records("archives.json");
    let options = ServingOptions {
        batch_size: 2,
        ..ServingOptions::default()
    };
    for (model, inputs) in models() {
        let saved = filled(&model);
        let path = folder.join(format!("{}.mlir", model.name()));
        saved.save_stablehlo(&path, &options).unwrap();
        let outputs = served(&path, &inputs);
        let record = golden.iter().find(|record| name(record) == model.name());
        let expected = record.unwrap()["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), expected.len());
        let predicted = predicted(&saved, Policy::Float32, &inputs);
        for ((got, expected), predicted) in outputs.iter().zip(expected).zip(&predicted) {
            let expected = array(expected).unwrap();
            assert_eq!(got.dims(), expected.dims(), "{}", model.name());
            let got = got.to_f64();
            assert_close(model.name(), &got, &expected.to_f64(), 1e-5);
            assert_close(model.name(), &got, &predicted.to_f64(), 1e-6);
        }
    }
}

pub(super) fn pixels() -> Model {
    let stack = Sequential::new(Input::new([6]).dtype(DType::U8).named("pixels"))
        .add(Rescaling::new(1.0 / 255.0).named("scale"))
        .add(Dense::new(5).activation(gelu).named("hidden"))
        .add(Dense::new(3).named("class"));
    stack.build().unwrap()
}

pub(super) fn bytes(rows: usize) -> HostTensor {
    let values: Vec<f32> = uniform("bytes", 6 * rows)
        .map(|u| (127.0 * u + 128.0) as f32)
        .collect();
    HostTensor::new([rows, 6], &values).convert(DType::U8)
}

#[test]
fn the_description_names_what_the_program_takes_and_gives() {
    let folder = Scratch::temporary("stablehlo-names");
    let saved = filled(&pixels());
    let path = folder.join("of.pixels.mlir");
    saved
        .save_stablehlo(&path, &ServingOptions::default())
        .unwrap();
    let weight = |name: &str, dims: &[usize]| json!({"name": name, "dtype": "f32", "dims": dims, "source": "weights"});
    let expected = json!({
        "format": "phalanx stablehlo",
        "version": 1,
        "phalanx": env!("CARGO_PKG_VERSION"),
        "program": "of.pixels.mlir",
        "function": "main",
        "weights": "of.pixels.safetensors",
        "arguments": [
            weight("hidden/kernel", &[6, 5]),
            weight("hidden/bias", &[5]),
            weight("class/kernel", &[5, 3]),
            weight("class/bias", &[3]),
            {"name": "pixels", "dtype": "u8", "dims": [1, 6], "source": "input"},
        ],
        "results": [{"name": "class", "dtype": "f32", "dims": [1, 3]}],
    });
    assert_eq!(description(&path), expected);
    let text = fs::read_to_string(&path).unwrap();
    for named in [
        "loc(\"hidden/kernel\")",
        "loc(\"pixels\")",
        "jax.result_info = \"class\"",
    ] {
        assert!(text.contains(named), "{text}");
    }
    let x = [bytes(1)];
    let (got, expected) = (
        served(&path, &x),
        predicted(&saved, Policy::Float32, &x).remove(0),
    );
    assert_close("one row", &got[0].to_f64(), &expected.to_f64(), 1e-6);
}

#[test]
fn programs_compute_in_the_types_and_forms_that_are_asked_for() {
    let folder = Scratch::temporary("stablehlo-types");
    let saved = filled(&pixels());
    let x = [bytes(4)];
    let [exact, narrow] = [Policy::Float32, Policy::MixedBfloat16].map(|precision| {
        let path = folder.join(format!("{precision:?}.mlir"));
        let options = ServingOptions {
            batch_size: 4,
            precision,
            ..ServingOptions::default()
        };
        saved.save_stablehlo(&path, &options).unwrap();
        let got = served(&path, &x)[0].to_f64();
        let expected = predicted(&saved, precision, &x)[0].to_f64();
        let tolerance = if precision == Policy::Float32 {
            1e-6
        } else {
            4e-3
        };
        assert_close("as predicted", &got, &expected, tolerance);
        got
    });
    let apart = relative_difference(&exact, &narrow);
    assert!((1e-5..3e-2).contains(&apart), "{apart}");

    // A convolution that is a product is one for the CPU alone.
    let kernel = json!({"name": "point", "input": {"name": "x", "shape": [3, 3, 2], "dtype": "f32"},
        "layers": [{"conv2d": {"filters": 4, "kernel_size": 1}}]});
    let saved = filled(&Model::from_config(&kernel).unwrap());
    let path = folder.join("point.mlir");
    let x = [HostTensor::new(
        [1, 3, 3, 2],
        &uniform("x", 18).map(|u| u as f32).collect::<Vec<_>>(),
    )];
    let [on_cpu, on_gpu] = [Platform::Cpu, Platform::Cuda].map(|platform| {
        let options = ServingOptions {
            platform,
            ..ServingOptions::default()
        };
        saved.save_stablehlo(&path, &options).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.contains("stablehlo.convolution"),
            platform == Platform::Cuda
        );
        served(&path, &x)[0].to_f64()
    });
    assert_close("forms", &on_cpu, &on_gpu, 1e-6);
}

/// A layer of a program, by a kernel of it.
#[derive(Debug)]
struct Own;

impl Layer for Own {
    fn kind(&self) -> &'static str {
        "own"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let call = CustomCall {
            target: "own.kernel".to_owned(),
            outputs: vec![inputs[0].shape()],
            attributes: Vec::new(),
            has_side_effect: false,
        };
        cx.graph().custom_call(call, &[&inputs[0]]).remove(0)
    }
}

#[test]
fn what_other_systems_cannot_serve_is_refused_and_nothing_is_written() {
    let folder = Scratch::temporary("stablehlo-refused");
    let refused = |saved: &SavedModel, file: &str, batch_size: usize, says: &[&str]| {
        let options = ServingOptions {
            batch_size,
            ..ServingOptions::default()
        };
        let error = saved.save_stablehlo(folder.join(file), &options);
        let error = error.unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 0, "{file}");
    };
    let saved = filled(&pixels());
    refused(&saved, "m.mlir", 0, &["`batch_size` is 0", "1 or more"]);
    for file in ["m.stablehlo", "m", "m.safetensors"] {
        refused(&saved, file, 1, &["does not end in .mlir", "`digits.mlir`"]);
    }
    let own = Sequential::new([3])
        .add(Own)
        .add(Dense::new(1).named("last"));
    let says = ["calls the kernel `own.kernel`", "methods of `Tensor`"];
    refused(&filled(&own.build().unwrap()), "m.mlir", 1, &says);
    let weights = folder.join("m.safetensors");
    fs::write(&weights, "mine").unwrap();
    let error = saved.save_stablehlo(folder.join("m.mlir"), &ServingOptions::default());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("was not exported"), "{error}");
    assert_eq!(fs::read(&weights).unwrap(), b"mine");
}
