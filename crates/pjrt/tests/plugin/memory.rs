//! Who owns memory, and how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx_pjrt::{
    Client, CompileOptions, ElementType, ExecuteOptions, OptionValue, SharedBytes, bytes_of,
    elements_of,
};

use crate::{LONG, add, array, client, compile, increment, plugin, run, values, wait_until};

/// Shared memory that tells when it is dropped.
struct Watched {
    words: Vec<[f32; 16]>,
    offset: usize,
    dropped: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &bytes_of(self.words.as_flattened())[self.offset..self.offset + 64]
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn shared_memory_lives_until_the_plugin_is_done() {
    let program = compile(&increment(16));
    for misalignment in [0, 4] {
        let dropped = Arc::new(AtomicBool::new(false));
        let mut watched = Watched {
            words: vec![[3.0; 16]; 3],
            offset: 0,
            dropped: Arc::clone(&dropped),
        };
        watched.offset = bytes_of(watched.words.as_flattened())
            .as_ptr()
            .align_offset(64)
            + misalignment;
        let shared: SharedBytes = Arc::new(watched);
        let buffer = client()
            .buffer_shared(0, ElementType::F32, &[16], Arc::clone(&shared))
            .unwrap();
        let outputs = run(&program, &[&buffer]);
        assert_eq!(values::<f32>(&outputs[0]), [4.0; 16]);
        assert_eq!(
            elements_of::<f32>((*shared).as_ref()),
            [3.0; 16],
            "donation must not write to shared memory"
        );
        drop(shared);
        drop((buffer, outputs));
        wait_until("the plugin never let go of the memory", || {
            dropped.load(Ordering::SeqCst)
        });
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let shared = Arc::new(Watched {
        words: vec![[0.0; 16]; 2],
        offset: 0,
        dropped: Arc::clone(&dropped),
    });
    assert!(
        client()
            .buffer_shared(7, ElementType::F32, &[16], shared)
            .is_err()
    );
    assert!(
        dropped.load(Ordering::SeqCst),
        "a refused buffer must not keep the memory"
    );
}

#[test]
fn donated_arguments_are_dead_and_others_live() {
    let program = compile(&increment(1024));
    let mut state = array(&[1024], &[0.0f32; 1024]);
    for _ in 0..100 {
        let next = run(&program, &[&state]).remove(0);
        assert!(state.is_deleted().unwrap());
        state = next;
    }
    assert_eq!(values::<f32>(&state), [100.0; 1024]);
    let kept = array(&[1024], &[1.0f32; 1024]);
    let options = ExecuteOptions {
        non_donatable: &[0],
        ..ExecuteOptions::default()
    };
    let outputs = program.execute(&[&[&kept]], &options).unwrap().outputs;
    assert_eq!(
        (values::<f32>(&kept)[0], values::<f32>(&outputs[0][0])[0]),
        (1.0, 2.0)
    );
    run(&program, &[&kept]);
    for error in [
        program
            .execute(&[&[&kept]], &ExecuteOptions::default())
            .unwrap_err(),
        kept.to_host(LONG).unwrap_err(),
    ] {
        assert!(error.message.contains("donated"), "{error}");
    }
    let error = program
        .execute(&[&[&kept]], &ExecuteOptions::default())
        .unwrap_err();
    assert!(
        error.message.contains("pass the output that replaced it"),
        "{error}"
    );
}

#[test]
fn values_may_be_dropped_in_any_order() {
    let client = Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let program = client.compile(&add(8), &CompileOptions::default()).unwrap();
    let x = client.buffer(0, ElementType::F32, &[8], &[0; 32]).unwrap();
    drop(client);
    let run = program
        .execute(&[&[&x, &x]], &ExecuteOptions::default())
        .unwrap();
    drop((program, x));
    assert_eq!(run.outputs[0][0].to_host(LONG).unwrap(), [0; 32]);
}
