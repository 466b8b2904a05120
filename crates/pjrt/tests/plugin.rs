//! The whole crate against the CPU plugin, one plugin and one client for all tests.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use phalanx_pjrt::{
    Client, CompileOptions, ElementType, ExecuteOptions, OptionValue, Plugin, bytes_of, elements_of,
};

const LONG: Duration = Duration::from_secs(60);

fn plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        Plugin::load(PathBuf::from(std::env::var("PHALANX_PJRT_CPU").unwrap())).unwrap()
    })
}

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        Client::new(plugin(), &[("cpu_device_count", OptionValue::Int(2))]).unwrap()
    })
}

#[test]
fn adds() {
    let client = client();
    let code = "func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
        %0 = stablehlo.add %x, %y : tensor<4xf32>
        return %0 : tensor<4xf32>
    }";
    let program = client.compile(code, &CompileOptions::default()).unwrap();
    let x = client
        .buffer(
            0,
            ElementType::F32,
            &[4],
            bytes_of(&[1.0f32, 2.0, 3.0, 4.0]),
        )
        .unwrap();
    let run = program
        .execute(&[&[&x, &x]], &ExecuteOptions::default())
        .unwrap();
    run.done[0].wait(LONG).unwrap();
    assert_eq!(
        elements_of::<f32>(&run.outputs[0][0].to_host(LONG).unwrap()),
        [2.0, 4.0, 6.0, 8.0]
    );
    assert_eq!(program.outputs()[0].dims, [4]);
}
