//! Rust functions that compiled programs call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use phalanx_pjrt::{
    CompileOptions, CustomCallAttribute, CustomCallError, ElementType, ExecuteOptions, StatusCode,
    elements_of,
};

use crate::{LONG, array, client, compile, module, values, wait_until};

fn call(name: &str, config: &str) -> String {
    let t = "tensor<4xf32>";
    let body = format!(
        "%0 = stablehlo.custom_call @{name}(%x) {{api_version = 4 : i32, has_side_effect = true, backend_config = {{{config}}}}} : ({t}) -> {t}\nreturn %0 : {t}"
    );
    module(&format!("%x: {t}"), t, &body)
}

/// Runs a one-call program and gives the result or the error, wherever it appears.
fn outcome(code: &str) -> Result<Vec<f32>, phalanx_pjrt::PjrtError> {
    let x = array(&[4], &[1.0f32, 2.0, 3.0, 4.0]);
    let run = compile(code).execute(
        &[&[&x]],
        &ExecuteOptions {
            launch_id: 42,
            ..ExecuteOptions::default()
        },
    )?;
    run.done[0].wait(LONG)?;
    Ok(elements_of(&run.outputs[0][0].to_host(LONG)?))
}

#[test]
fn custom_calls_compute_and_read_attributes() {
    let seen = Arc::new(AtomicU64::new(0));
    let run_id = Arc::clone(&seen);
    client()
        .register_custom_call("test.scale", move |call| {
            run_id.store(call.run_id()?.cast_unsigned(), Ordering::SeqCst);
            assert_eq!(
                (call.operands(), call.results(), call.device_ordinal()?),
                (1, 1, 0)
            );
            assert_eq!(call.operand_shape(0)?, (ElementType::F32, &[4i64][..]));
            assert_eq!(
                call.attribute("label")?,
                CustomCallAttribute::Text("a label")
            );
            assert_eq!(call.attribute("half")?, CustomCallAttribute::Float(0.5));
            assert_eq!(call.attribute("flag")?, CustomCallAttribute::Bool(true));
            assert_eq!(
                call.attribute("list")?,
                CustomCallAttribute::Ints(vec![1, -2])
            );
            assert_eq!(
                call.attribute("reals")?,
                CustomCallAttribute::Floats(vec![1.5, 2.5])
            );
            let missing = call.attribute("absent").unwrap_err().message;
            assert!(
                missing.contains("absent") && missing.contains("factor"),
                "{missing}"
            );
            let factor = call.int("factor")? as f32;
            let (input, output) = (call.operand::<f32>(0)?, call.result::<f32>(0)?);
            assert!(call.result::<f32>(0).is_err() && call.result_bytes(1).is_err());
            output
                .iter_mut()
                .zip(input)
                .for_each(|(output, input)| *output = input * factor);
            Ok(())
        })
        .unwrap();
    let config = "factor = 3 : i64, label = \"a label\", half = 0.5 : f32, flag = true, list = array<i64: 1, -2>, reals = array<f64: 1.5, 2.5>";
    assert_eq!(
        outcome(&call("test.scale", config)).unwrap(),
        [3.0, 6.0, 9.0, 12.0]
    );
    assert_eq!(seen.load(Ordering::SeqCst), 42);
    let again = client()
        .register_custom_call("test.scale", |_| Ok(()))
        .unwrap_err();
    assert_eq!(again.code, StatusCode::AlreadyExists);
    assert!(
        client()
            .register_custom_call("bad name", |_| Ok(()))
            .unwrap_err()
            .message
            .contains("bad name")
    );
}

#[test]
fn handlers_that_fail_or_panic_give_errors() {
    let register = |name: &str,
                    handler: fn(
        &mut phalanx_pjrt::CustomCallFrame<'_>,
    ) -> Result<(), CustomCallError>| {
        client().register_custom_call(name, handler).unwrap();
    };
    register("test.panic", |_| panic!("the handler fell over"));
    register("test.refuse", |_| {
        Err(CustomCallError::new(
            StatusCode::DeadlineExceeded,
            "rank 3 is missing",
        ))
    });
    register("test.wrong", |call| call.operand::<i32>(0).map(drop));
    let error = outcome(&call("test.panic", "")).unwrap_err();
    assert!(
        error
            .message
            .contains("custom call `test.panic`: panicked: the handler fell over"),
        "{error}"
    );
    let error = outcome(&call("test.refuse", "")).unwrap_err();
    assert!(
        error.code == StatusCode::DeadlineExceeded && error.message.contains("rank 3 is missing"),
        "{error}"
    );
    let error = outcome(&call("test.wrong", "")).unwrap_err();
    assert!(
        error.message.contains("type f32") && error.message.contains("expects i32"),
        "{error}"
    );
    let error = client()
        .compile(&call("test.unregistered", ""), &CompileOptions::default())
        .unwrap_err();
    assert!(error.message.contains("test.unregistered"), "{error}");
}

#[test]
fn an_operand_that_is_a_result_is_given_as_the_result_only() {
    client()
        .register_custom_call("test.in_place", |call| {
            let error = call.operand::<f32>(0).unwrap_err().message;
            assert!(error.contains("shares its memory with result 0"), "{error}");
            call.result::<f32>(0)?
                .iter_mut()
                .for_each(|value| *value += 10.0);
            Ok(())
        })
        .unwrap();
    let alias = "output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>], backend_config";
    let code = call("test.in_place", "").replace("backend_config", alias);
    assert_eq!(outcome(&code).unwrap(), [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn waits_end_at_their_deadline_and_the_work_goes_on() {
    static MAY_END: AtomicBool = AtomicBool::new(false);
    client()
        .register_custom_call("test.slow", |call| {
            wait_until("the test lets it end", || MAY_END.load(Ordering::SeqCst));
            call.result::<f32>(0)?.fill(1.0);
            Ok(())
        })
        .unwrap();
    // XLA runs small programs inside `execute`; the product makes this one big enough for a thread.
    let code = module(
        "%x: tensor<64x64xf32>",
        "tensor<4xf32>",
        "%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
         %1 = stablehlo.slice %0 [0:1, 0:4] : (tensor<64x64xf32>) -> tensor<1x4xf32>
         %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
         %3 = stablehlo.custom_call @test.slow(%2) {api_version = 4 : i32, has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
         return %3 : tensor<4xf32>",
    );
    let x = client()
        .buffer(1, ElementType::F32, &[64, 64], &[0; 64 * 64 * 4])
        .unwrap();
    let options = CompileOptions {
        device_assignment: Some(vec![1]),
        ..CompileOptions::default()
    };
    let program = client().compile(&code, &options).unwrap();
    // Run inside `execute`, the call would wait in vain.
    let run = program
        .execute(&[&[&x]], &ExecuteOptions::default())
        .unwrap();
    let output = &run.outputs[0][0];
    let short = Duration::from_millis(20);
    assert!(!run.done[0].is_ready().unwrap());
    assert!(run.done[0].wait(short).unwrap_err().is_timeout());
    assert!(output.to_host(short).unwrap_err().is_timeout());
    assert!(
        output
            .copy_to(&mut [0; 16], short)
            .unwrap_err()
            .is_timeout()
    );
    let (sender, receiver) = std::sync::mpsc::channel();
    MAY_END.store(true, Ordering::SeqCst);
    run.done[0]
        .on_ready(move |result| sender.send(result).unwrap())
        .unwrap();
    receiver.recv_timeout(LONG).unwrap().unwrap();
    assert!(run.done[0].is_ready().unwrap());
    assert_eq!(values::<f32>(output), [1.0; 4]);
}
