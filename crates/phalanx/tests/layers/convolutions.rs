//! Convolutions that Keras has no numbers for on a CPU.

use phalanx::nn::{
    Conv1d, Conv1dTranspose, Conv2dTranspose, Padding, Permute, RepeatVector, Sequential,
    UpSampling2d,
};
use phalanx_graph::HostTensor;
use phalanx_testkit::assert_close;

use crate::{call, ramp};

/// Steps between the elements of a kernel are as zeros in between.
#[test]
fn a_dilated_transposed_convolution_has_zeros_in_its_kernel() {
    let layer = |size: usize| Conv2dTranspose::new(1, size).strides(2).use_bias(false);
    let output = |layer: Conv2dTranspose, kernel: HostTensor| {
        let model = Sequential::new([3, 2, 1]).add(layer).build().unwrap();
        let image = ramp(&[2, 3, 2, 1]);
        call(&model, &[kernel], &[image], |_, cx| cx)
            .0
            .swap_remove(0)
    };
    let small = HostTensor::new([2, 2, 1, 1], &[1.0f32, -2.0, 0.5, 3.0]);
    let spread = [1.0f32, 0.0, -2.0, 0.0, 0.0, 0.0, 0.5, 0.0, 3.0];
    let spread = HostTensor::new([3, 3, 1, 1], &spread);
    let (dilated, expected) = (
        output(layer(2).dilation(2), small),
        output(layer(3), spread),
    );
    assert_eq!(dilated.shape(), expected.shape());
    assert_close("dilated", &dilated.to_f64(), &expected.to_f64(), 1e-6);
}

/// A window of 4 at each second place gives 8 places, of which the first two and the last two are cut off: as on JAX, while TensorFlow refuses it.
#[test]
fn a_transposed_convolution_of_an_even_window_may_be_as_small_as_its_strides_allow() {
    let layer = Conv1dTranspose::new(1, 4).strides(2).use_bias(false);
    let layer = layer.padding(Padding::Same).output_padding(0);
    let model = Sequential::new([3, 1]).add(layer).build().unwrap();
    let kernel = HostTensor::new([4, 1, 1], &[1.0f32, 10.0, 100.0, 1000.0]);
    let steps = HostTensor::new([1, 3, 1], &[1.0f32, 2.0, 3.0]);
    let (found, ..) = call(&model, &[kernel], &[steps], |_, cx| cx);
    assert_eq!(found[0].dims(), [1, 4, 1]);
    assert_eq!(found[0].f32s(), [102.0, 1020.0, 203.0, 2030.0]);
}

#[test]
fn sizes_that_no_strides_make_are_told() {
    let layer = |strides: usize| Conv2dTranspose::new(1, 2).strides(strides);
    let told = |layer: Conv2dTranspose| {
        let model = Sequential::new([1, 3, 1]).add(layer).build();
        model.unwrap_err().to_string()
    };
    let far = told(layer(2).output_padding([1, 2]));
    assert!(
        far.contains(
            "`output_padding` must be below `strides` in every direction, got [1, 2] and [2, 2]"
        ),
        "{far}"
    );
    let nothing = told(layer(2).padding(Padding::Same).output_padding(0));
    assert!(
        nothing.contains("every direction of the output must be between 1 and"),
        "{nothing}"
    );
}

#[test]
fn inputs_that_do_not_fit_are_told() {
    let told = |model: Sequential| model.build().unwrap_err().to_string();
    let conv = told(Sequential::new([2, 4]).add(Conv1d::new(3, 3)));
    assert!(
        conv.contains("a window of 3 steps does not fit sequences of 2; use `padding` same"),
        "{conv}"
    );
    let permute = told(Sequential::new([2, 4]).add(Permute::new([1, 3])));
    assert!(
        permute.contains("`dims` must hold each of 1 to 2 once, got [1, 3]"),
        "{permute}"
    );
    let repeat = told(Sequential::new([2, 4]).add(RepeatVector::new(2)));
    assert!(
        repeat.contains("expected vectors [batch, features]"),
        "{repeat}"
    );
    let large = UpSampling2d::new(1 << 20);
    let large = told(Sequential::new([2, 2, 1]).add(large));
    assert!(
        large.contains("must have at most 1048576 elements, got 2097152"),
        "{large}"
    );
}
