//! The handlers that XLA calls: they read operands, results and attributes, check them, and run the kernel.

use phalanx_pjrt::{
    Bf16, Client, CustomCallAttribute, CustomCallError, CustomCallFrame, ElementType, StatusCode,
};

use crate::batch_norm;
use crate::bf16_matmul::bf16_product;
use crate::convolution::{Algorithm, ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::kernels::Kernels;
use crate::library::KernelError;
use crate::max_pool::{self, MaxPool};
use crate::onednn::{DataType, OneDnnError};
use crate::stored::Stored;
use crate::sys;
use crate::worker_pool::WorkerError;
#[cfg(target_arch = "x86_64")]
use crate::worker_state::WorkerState;

type Handler = fn(&Kernels, &mut CustomCallFrame<'_>) -> Result<(), CustomCallError>;

/// Every custom call, by name.
pub(crate) const ALL: [(&str, Handler); 8] = [
    ("phalanx.conv", |kernels, call| {
        convolution(kernels, call, Direction::Forward)
    }),
    ("phalanx.conv_input_gradient", |kernels, call| {
        convolution(kernels, call, Direction::InputGradient)
    }),
    ("phalanx.conv_kernel_gradient", |kernels, call| {
        convolution(kernels, call, Direction::KernelGradient)
    }),
    ("phalanx.max_pool", |kernels, call| {
        match stored_in(call.operand_shape(0)?.0)? {
            Storage::F32 => max_pool::<f32>(kernels, call),
            Storage::Bf16 => max_pool::<Bf16>(kernels, call),
        }
    }),
    (
        "phalanx.max_pool_gradient",
        |kernels, call| match stored_in(call.operand_shape(1)?.0)? {
            Storage::F32 => max_pool_gradient::<f32>(kernels, call),
            Storage::Bf16 => max_pool_gradient::<Bf16>(kernels, call),
        },
    ),
    ("phalanx.batch_norm", |kernels, call| {
        match stored_in(call.operand_shape(0)?.0)? {
            Storage::F32 => batch_norm::<f32>(kernels, call),
            Storage::Bf16 => batch_norm::<Bf16>(kernels, call),
        }
    }),
    (
        "phalanx.batch_norm_gradient",
        |kernels, call| match stored_in(call.operand_shape(0)?.0)? {
            Storage::F32 => batch_norm_gradient::<f32>(kernels, call),
            Storage::Bf16 => batch_norm_gradient::<Bf16>(kernels, call),
        },
    ),
    ("phalanx.bf16_product", bf16_product),
];

/// The custom calls of this kind of processor alone.
#[cfg(target_arch = "x86_64")]
pub(crate) const BY_PREPARED: &[(&str, Handler)] = &[
    ("phalanx.conv_panels", crate::convolution_panels::pack),
    (
        "phalanx.conv_by_panels",
        crate::convolution_panels::convolve,
    ),
    ("phalanx.conv_points", crate::convolution_points::transform),
    (
        "phalanx.conv_by_points",
        crate::convolution_points::convolve,
    ),
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const BY_PREPARED: &[(&str, Handler)] = &[];

/// The element types that our own loops take.
#[derive(Clone, Copy)]
enum Storage {
    F32,
    Bf16,
}

fn stored_in(element: ElementType) -> Result<Storage, CustomCallError> {
    match element {
        ElementType::F32 => Ok(Storage::F32),
        ElementType::Bf16 => Ok(Storage::Bf16),
        other => Err(invalid(format!(
            "elements must be f32 or bf16, got {other}"
        ))),
    }
}

fn convolution(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
    direction: Direction,
) -> Result<(), CustomCallError> {
    let operands = [
        image(call.operand_shape(0)?)?,
        image(call.operand_shape(1)?)?,
    ];
    let result = image(call.result_shape(0)?)?;
    let (x, kernel, y) = match direction {
        Direction::Forward => (operands[0], operands[1], result),
        Direction::InputGradient => (result, operands[1], operands[0]),
        Direction::KernelGradient => (operands[0], result, operands[1]),
    };
    let third = call.operands() > 2;
    let key = described(kernels, call, direction, [x, kernel, y], algorithm(call)?)?;
    let epilogue = match direction {
        Direction::Forward => {
            let relu = call.optional_attribute("relu")?.is_some() && has_relu(call)?;
            forward_epilogue(call, &y, relu)?
        }
        Direction::InputGradient if third => {
            expect_dims(call.operand_shape(2)?.1, &x.dims)?;
            Epilogue::SelectPositive(call.operand(2)?)
        }
        Direction::InputGradient | Direction::KernelGradient => Epilogue::Identity,
    };
    if result.element != DataType::F32 && !matches!(epilogue, Epilogue::Identity) {
        return Err(invalid(format!(
            "what follows a convolution must be of f32: {key:?}"
        )));
    }
    run(kernels, call, key, epilogue)
}

/// A convolution of x, a kernel and y with the call's attributes, which may have a bias as its third operand, forward.
fn described(
    kernels: &Kernels,
    call: &CustomCallFrame<'_>,
    direction: Direction,
    [x, kernel, y]: [TensorDesc; 3],
    chosen: Option<Algorithm>,
) -> Result<ConvolutionDesc, CustomCallError> {
    let key = ConvolutionDesc {
        direction,
        bias: call.operands() > 2 && direction == Direction::Forward,
        x,
        kernel,
        y,
        strides: pair(call, "strides")?,
        dilation: pair(call, "dilation")?,
        padding_low: pair(call, "padding_low")?,
        padding_high: pair(call, "padding_high")?,
        groups: call.int("groups")?,
        native_bf16: kernels.support().bf16,
        chosen,
    };
    key.check().map_err(invalid)?;
    let key = key.where_bf16_is_right();
    if key.bias {
        let (element, dims) = call.operand_shape(2)?;
        expect_dims(dims, &kernel.dims[3..])?;
        if data_type(element)? != kernel.element {
            let wanted = kernel.element;
            return Err(invalid(format!(
                "the bias must have the element type of the kernel, {wanted:?}, got {element}"
            )));
        }
    }
    Ok(key)
}

/// A convolution of f32 by a kernel of this window that was brought into another form ahead: `check` compares the form with the kernel, `run` computes y
/// from x, the form, and a bias where there are three operands.
///
/// # Errors
/// Dimensions do not fit each other, or `check` refuses.
#[cfg(target_arch = "x86_64")]
pub(crate) fn convolve_by_form(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
    (window, chosen): ([i64; 2], Option<Algorithm>),
    check: impl FnOnce((ElementType, &[i64]), &TensorDesc) -> Result<(), CustomCallError>,
    run: impl FnOnce(&ConvolutionDesc, &[&[f32]], &mut [f32], Epilogue<'_>, &mut WorkerState) + Send,
) -> Result<(), CustomCallError> {
    let (x, y) = (
        image(call.operand_shape(0)?)?,
        image(call.result_shape(0)?)?,
    );
    let kernel = TensorDesc {
        element: DataType::F32,
        dims: [window[0], window[1], x.dims[3], y.dims[3]],
    };
    let key = described(kernels, call, Direction::Forward, [x, kernel, y], chosen)?;
    check(call.operand_shape(1)?, &kernel)?;
    let epilogue = forward_epilogue(call, &y, has_relu(call)?)?;
    let operands: Vec<&[f32]> = (0..call.operands().min(3))
        .map(|index| call.operand(index))
        .collect::<Result<_, _>>()?;
    let result = call.result::<f32>(0)?;
    if result.is_empty() {
        return Ok(());
    }
    let run = |state: &mut WorkerState| run(&key, &operands, result, epilogue, state);
    kernels
        .on_worker(replicas(call)?, run)
        .map_err(|why| worker_error(&why))
}

/// What follows a convolution: the array that a fourth operand has is added, then comes the ReLU, where there is one.
pub(crate) fn forward_epilogue<'a>(
    call: &CustomCallFrame<'a>,
    y: &TensorDesc,
    relu: bool,
) -> Result<Epilogue<'a>, CustomCallError> {
    let ceiling = match relu {
        true => Some(ceiling(call)?),
        false => None,
    };
    if call.operands() > 3 {
        expect_dims(call.operand_shape(3)?.1, &y.dims)?;
        return Ok(Epilogue::Add(call.operand(3)?, ceiling));
    }
    Ok(ceiling.map_or(Epilogue::Identity, Epilogue::Relu))
}

/// The algorithm that the program names.
fn algorithm(call: &CustomCallFrame<'_>) -> Result<Option<Algorithm>, CustomCallError> {
    match call.optional_attribute("algorithm")? {
        None => Ok(None),
        Some(CustomCallAttribute::Text(name)) => Algorithm::named(name).map(Some).map_err(invalid),
        Some(other) => Err(invalid(format!(
            "the attribute `algorithm` must be a text, got {other:?}"
        ))),
    }
}

fn max_pool<T: Stored>(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let x = dims4(call.operand_shape(0)?.1)?;
    let y = dims4(call.result_shape(0)?.1)?;
    let pool = pool(call, (x, y), call.result_shape(1)?)?;
    let job = max_pool::MaxPoolForward::<T> {
        x: call.operand(0)?,
        y: call.result(0)?,
        argmax: call.result_bytes(1)?,
    };
    if job.x.is_empty() || job.y.is_empty() {
        job.y.fill(T::narrow(f32::NEG_INFINITY));
        job.argmax.fill(0);
        return Ok(());
    }
    kernels
        .max_pool(replicas(call)?, &pool, job)
        .map_err(|why| worker_error(&why))
}

fn max_pool_gradient<T: Stored>(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let x = dims4(call.result_shape(0)?.1)?;
    let y = dims4(call.operand_shape(1)?.1)?;
    let pool = pool(call, (x, y), call.operand_shape(0)?)?;
    let job = max_pool::MaxPoolGradient::<T> {
        argmax: call.operand_bytes(0)?,
        dy: call.operand(1)?,
        dx: call.result(0)?,
    };
    if job.dx.is_empty() || job.dy.is_empty() {
        job.dx.fill(T::narrow(0.0));
        return Ok(());
    }
    kernels
        .max_pool_gradient(replicas(call)?, &pool, job)
        .map_err(|why| worker_error(&why))
}

fn pool(
    call: &CustomCallFrame<'_>,
    (x, y): ([i64; 4], [i64; 4]),
    (argmax, argmax_dims): (ElementType, &[i64]),
) -> Result<MaxPool, CustomCallError> {
    if argmax != ElementType::U8 || argmax_dims != y {
        return Err(invalid(format!(
            "the places must be ui8 with the dimensions {y:?}, got {argmax} with {argmax_dims:?}"
        )));
    }
    let pool = MaxPool {
        x,
        y,
        window: pair(call, "window")?,
        strides: pair(call, "strides")?,
        padding_low: pair(call, "padding_low")?,
        padding_high: pair(call, "padding_high")?,
    };
    pool.check().map_err(invalid)?;
    Ok(pool)
}

fn batch_norm<T: Stored>(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let x = call.operand_shape(0)?.1;
    let of_channels = channels(x)?;
    for operand in 1..3 {
        expect_dims(call.operand_shape(operand)?.1, of_channels)?;
    }
    let residual = (call.operands() > 3).then(|| call.operand::<T>(3));
    if residual.is_some() {
        expect_dims(call.operand_shape(3)?.1, x)?;
    }
    expect_dims(call.result_shape(0)?.1, x)?;
    expect_dims(call.result_shape(1)?.1, of_channels)?;
    expect_dims(call.result_shape(2)?.1, of_channels)?;
    let relu = has_relu(call)?.then(|| ceiling(call)).transpose()?;
    let job = batch_norm::BatchNormForward {
        x: call.operand(0)?,
        gamma: call.operand(1)?,
        beta: call.operand(2)?,
        residual: residual.transpose()?,
        y: call.result(0)?,
        mean: call.result(1)?,
        variance: call.result(2)?,
        epsilon: epsilon(call)?,
        relu,
    };
    kernels
        .batch_norm(replicas(call)?, job)
        .map_err(|why| worker_error(&why))
}

fn batch_norm_gradient<T: Stored>(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let x = call.operand_shape(1)?.1;
    let of_channels = channels(x)?;
    expect_dims(call.operand_shape(0)?.1, x)?;
    for operand in 2..5 {
        expect_dims(call.operand_shape(operand)?.1, of_channels)?;
    }
    expect_dims(call.result_shape(0)?.1, x)?;
    for result in 1..3 {
        expect_dims(call.result_shape(result)?.1, of_channels)?;
    }
    let mask = match call.operands() {
        5 => batch_norm::Mask::<T>::None,
        _ if call.operand_shape(5)?.1 == of_channels => batch_norm::Mask::Beta {
            beta: call.operand(5)?,
            ceiling: ceiling(call)?,
        },
        _ => {
            expect_dims(call.operand_shape(5)?.1, x)?;
            expect_dims(call.result_shape(3)?.1, x)?;
            batch_norm::Mask::Output {
                y: call.operand(5)?,
                residual: call.result(3)?,
            }
        }
    };
    let job = batch_norm::BatchNormGradient {
        dy: call.operand(0)?,
        x: call.operand(1)?,
        mean: call.operand(2)?,
        variance: call.operand(3)?,
        gamma: call.operand(4)?,
        mask,
        dx: call.result(0)?,
        dgamma: call.result(1)?,
        dbeta: call.result(2)?,
        epsilon: epsilon(call)?,
    };
    kernels
        .batch_norm_gradient(replicas(call)?, job)
        .map_err(|why| worker_error(&why))
}

/// The last dimension, of an array with elements and more than one dimension.
fn channels(dims: &[i64]) -> Result<&[i64], CustomCallError> {
    match dims {
        [_, .., _] if !dims.contains(&0) => Ok(&dims[dims.len() - 1..]),
        _ => Err(invalid(format!(
            "x must have elements and at least 2 dimensions, got {dims:?}"
        ))),
    }
}

pub(crate) fn expect_dims(found: &[i64], expected: &[i64]) -> Result<(), CustomCallError> {
    if found == expected {
        return Ok(());
    }
    Err(invalid(format!(
        "expected the dimensions {expected:?}, got {found:?}"
    )))
}

fn epsilon(call: &CustomCallFrame<'_>) -> Result<f32, CustomCallError> {
    match call.attribute("epsilon")? {
        CustomCallAttribute::Float(epsilon) if epsilon >= 0.0 => Ok(epsilon as f32),
        other => Err(invalid(format!(
            "the attribute `epsilon` must be a float of at least 0, got {other:?}"
        ))),
    }
}

/// Whether a ReLU follows.
pub(crate) fn has_relu(call: &CustomCallFrame<'_>) -> Result<bool, CustomCallError> {
    flag(call, "relu")
}

/// An attribute that is true or false.
pub(crate) fn flag(call: &CustomCallFrame<'_>, name: &str) -> Result<bool, CustomCallError> {
    match call.attribute(name)? {
        CustomCallAttribute::Bool(flag) => Ok(flag),
        other => Err(invalid(format!(
            "the attribute `{name}` must be a boolean, got {other:?}"
        ))),
    }
}

/// The ceiling of a ReLU; 0 stands for none.
pub(crate) fn ceiling(call: &CustomCallFrame<'_>) -> Result<batch_norm::Ceiling, CustomCallError> {
    match call.attribute("ceiling")? {
        CustomCallAttribute::Float(0.0) => Ok(batch_norm::NO_CEILING),
        CustomCallAttribute::Float(ceiling) if ceiling > 0.0 => Ok(ceiling as f32),
        other => Err(invalid(format!(
            "the attribute `ceiling` must be a float of at least 0, got {other:?}"
        ))),
    }
}

/// Element type and four dimensions of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TensorDesc {
    pub(crate) element: DataType,
    pub(crate) dims: [i64; 4],
}

pub(crate) fn image((element, dims): (ElementType, &[i64])) -> Result<TensorDesc, CustomCallError> {
    Ok(TensorDesc {
        element: data_type(element)?,
        dims: dims4(dims)?,
    })
}

fn data_type(element: ElementType) -> Result<DataType, CustomCallError> {
    match stored_in(element)? {
        Storage::F32 => Ok(DataType::F32),
        Storage::Bf16 => Ok(DataType::Bf16),
    }
}

fn dims4(dims: &[i64]) -> Result<[i64; 4], CustomCallError> {
    dims.try_into()
        .map_err(|_| invalid(format!("a tensor must have 4 dimensions, got {dims:?}")))
}

/// An attribute of two integers.
pub(crate) fn pair(call: &CustomCallFrame<'_>, name: &str) -> Result<[i64; 2], CustomCallError> {
    match call.attribute(name)? {
        CustomCallAttribute::Ints(values) => values.as_slice().try_into().map_err(|_| {
            invalid(format!(
                "the attribute `{name}` must have 2 integers, got {values:?}"
            ))
        }),
        other => Err(invalid(format!(
            "the attribute `{name}` must be an array of integers, got {other:?}"
        ))),
    }
}

fn run(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
    key: ConvolutionDesc,
    epilogue: Epilogue<'_>,
) -> Result<(), CustomCallError> {
    let inputs: Vec<_> = (0..2 + usize::from(key.bias))
        .map(|index| call.operand_bytes(index))
        .collect::<Result<_, _>>()?;
    let mut outputs: Vec<_> = (0..call.results())
        .map(|index| call.result_bytes(index))
        .collect::<Result<_, _>>()?;
    if inputs.iter().any(|input| input.is_empty()) || outputs.iter().any(|output| output.is_empty())
    {
        // Nothing goes in, so that sums are zero; or nothing comes out.
        outputs.iter_mut().for_each(|output| output.fill(0));
        return Ok(());
    }
    kernels
        .run(replicas(call)?, key, &inputs, &mut outputs, epilogue)
        .map_err(|why| worker_error(&why))?
        .map_err(|refused| refusal(&refused, &key))
}

/// Registers a custom call with this client's plugin for the rest of the process; does nothing when it is registered already.
///
/// # Errors
/// The plugin has no custom calls.
pub(crate) fn register(
    client: &Client,
    name: &str,
    handler: impl Fn(&mut CustomCallFrame<'_>) -> Result<(), CustomCallError> + Send + Sync + 'static,
) -> Result<(), KernelError> {
    let registered = client.register_custom_call(name, handler);
    registered.or_else(|error| match error.code {
        StatusCode::AlreadyExists => Ok(()),
        _ => Err(KernelError::Register {
            reason: error.to_string(),
        }),
    })
}

/// Number of replicas of the program, which compute at the same time.
pub(crate) fn replicas(call: &CustomCallFrame<'_>) -> Result<usize, CustomCallError> {
    match call.optional_attribute("replicas")? {
        None => Ok(1),
        Some(CustomCallAttribute::Int(count)) if count > 0 => {
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        }
        Some(other) => Err(invalid(format!(
            "the attribute `replicas` must be a positive integer, got {other:?}"
        ))),
    }
}

/// What a user can do about a kernel that fails.
const WITHOUT_KERNELS: &str = "PHALANX_KERNELS=off, or KernelsMode::Off in a program that names a mode, computes it with XLA alone";

pub(crate) fn worker_error(why: &WorkerError) -> CustomCallError {
    let code = match why {
        WorkerError::Busy(_) => StatusCode::DeadlineExceeded,
        WorkerError::NotStarted(_) => StatusCode::ResourceExhausted,
    };
    CustomCallError::new(code, format!("{why}; {WITHOUT_KERNELS}"))
}

pub(crate) fn refusal(refused: &OneDnnError, key: &dyn std::fmt::Debug) -> CustomCallError {
    let code = match refused.status {
        1 => StatusCode::ResourceExhausted,
        2 => StatusCode::InvalidArgument,
        sys::UNIMPLEMENTED => StatusCode::Unimplemented,
        _ => StatusCode::Internal,
    };
    CustomCallError::new(code, format!("{refused}: {key:?}; {WITHOUT_KERNELS}"))
}

pub(crate) fn invalid(message: String) -> CustomCallError {
    CustomCallError::new(StatusCode::InvalidArgument, message)
}
