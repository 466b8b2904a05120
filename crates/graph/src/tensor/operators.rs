//! `+ - * / %` between tensors and numbers.

use std::ops;

use super::Tensor;
use crate::op::{BinaryOp, Op, UnaryOp};

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
                self.binary(BinaryOp::$trait, &self.like(other))
            }
        }
        impl ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                self.binary(BinaryOp::$trait, &self.like(other))
            }
        }
        impl ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                other.like(self).binary(BinaryOp::$trait, other)
            }
        }
        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                other.like(self).binary(BinaryOp::$trait, &other)
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
