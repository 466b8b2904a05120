//! `+ - * / %` between tensors and numbers, which the tensor's integers must hold.

use std::ops;

use super::Tensor;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::{HostTensor, Shape};

impl Tensor {
    /// The scalar that an operator combines with the tensor: a mistake where its integers do not hold the number.
    #[track_caller]
    pub(super) fn operand(&self, operator: &str, value: f64) -> Self {
        let shape = self.shape();
        let held = || HostTensor::full(Shape::scalar(shape.dtype), value).to_f64();
        if shape.dtype.is_integer() && held() != [value] {
            let message = format!("{shape} does not hold {value}; convert first");
            self.graph.fail(operator, message);
        }
        self.like(value)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident),* $(,)?) => {$(
        impl ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                self.binary(BinaryOp::$trait, other)
            }
        }
        impl ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                self.binary(BinaryOp::$trait, &other)
            }
        }
        impl ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                self.binary(BinaryOp::$trait, other)
            }
        }
        impl ops::$trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                self.binary(BinaryOp::$trait, &other)
            }
        }
        impl ops::$trait<f64> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                self.binary(BinaryOp::$trait, &self.operand(BinaryOp::$trait.name(), other))
            }
        }
        impl ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                self.binary(BinaryOp::$trait, &self.operand(BinaryOp::$trait.name(), other))
            }
        }
        impl ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                other.operand(BinaryOp::$trait.name(), self).binary(BinaryOp::$trait, other)
            }
        }
        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                other.operand(BinaryOp::$trait.name(), self).binary(BinaryOp::$trait, &other)
            }
        }
    )*};
}
operators!(Add add, Sub sub, Mul mul, Div div, Rem rem);

impl ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.graph.push(Op::Unary(UnaryOp::Neg), &[self])
    }
}

impl ops::Neg for Tensor {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        -&self
    }
}
