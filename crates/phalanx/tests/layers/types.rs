//! Element types: integers that layers are given, and results of 16 bits.

use phalanx::nn::{
    Activation, Average, Cx, Gru, Input, LayerSpec, Lstm, Network, Policy, ScaledAdd, Sequential,
    SimpleRnn, softmax,
};
use phalanx_graph::{DType, Graph, HostTensor};
use phalanx_testkit::assert_close;

use crate::{call, ramp};

/// As Keras' `Average`: the mean of 1 and 2 is 1.5.
#[test]
fn the_mean_of_integers_is_no_integer() {
    let inputs = [1, 2].map(|value: i32| HostTensor::new([1, 1], &[value]));
    let of = |layer: LayerSpec| {
        let mut net = Network::new();
        let nodes = [(); 2].map(|()| net.input(Input::new([1]).dtype(DType::I32)));
        let output = net.add(layer, &nodes);
        net.build(&nodes, &[output])
    };
    let mean = of(Average.into()).unwrap();
    let (outputs, ..) = call(&mean, &[], &inputs, |_, cx| cx);
    assert_eq!(outputs[0], HostTensor::new([1, 1], &[1.5f32]));
    let error = of(ScaledAdd::new(0.1).into()).unwrap_err().to_string();
    assert!(error.contains("expected floats, got i32"), "{error}");
}

/// Softmax gives f32 under a mixed policy, and the states of a recurrent layer keep their type.
#[test]
fn recurrent_layers_take_every_activation_in_mixed_precision() {
    let x = ramp(&[2, 3, 4]);
    for activation in [Activation::Softmax, Activation::LogSoftmax] {
        let layers: [LayerSpec; 3] = [
            SimpleRnn::new(4).activation(activation).into(),
            Gru::new(4).activation(activation).into(),
            Lstm::new(4)
                .activation(activation)
                .recurrent_activation(softmax)
                .into(),
        ];
        for layer in layers {
            let model = Sequential::new([3, 4]).add(layer).build().unwrap();
            let variables = model.init(0).unwrap();
            let of = |policy| {
                let prepare = |_: &Graph, cx: Cx| cx.with_policy(policy);
                call(&model, &variables, std::slice::from_ref(&x), prepare).0[0].to_f64()
            };
            let exact = of(Policy::Float32);
            for policy in [Policy::MixedBfloat16, Policy::MixedFloat16] {
                assert_close(policy.name(), &of(policy), &exact, 3e-2);
            }
        }
    }
}
