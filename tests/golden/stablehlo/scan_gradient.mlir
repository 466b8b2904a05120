module @scan_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<6x2x3xf32> loc("x"), %arg1: tensor<2x4xf32> loc("state"), %arg2: tensor<7x4xf32> loc("rnn/kernel")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<7x4xf32> {jax.result_info = "rnn/kernel"}, tensor<2x4xf32> {jax.result_info = "state"}) {
    %0 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
    %1 = stablehlo.constant dense<0.0> : tensor<6x2x4xf32> loc("rnn")
    %7:5 = stablehlo.while(%2 = %0, %3 = %arg1, %4 = %arg0, %5 = %arg2, %6 = %1) : tensor<i32>, tensor<2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x4xf32>
    cond {
      %8 = stablehlo.constant dense<6> : tensor<i32> loc("rnn")
      %9 = stablehlo.compare LT, %2, %8 : (tensor<i32>, tensor<i32>) -> tensor<i1> loc("rnn")
      stablehlo.return %9 : tensor<i1>
    } do {
      %10 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
      %11 = stablehlo.dynamic_slice %4, %2, %10, %10, sizes = [1, 2, 3] : (tensor<6x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32> loc("rnn")
      %12 = stablehlo.reshape %11 : (tensor<1x2x3xf32>) -> tensor<2x3xf32> loc("rnn")
      %13 = stablehlo.concatenate %12, %3, dim = 1 : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32> loc("rnn")
      %14 = stablehlo.dot_general %13, %5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x7xf32>, tensor<7x4xf32>) -> tensor<2x4xf32> loc("rnn")
      %15 = stablehlo.tanh %14 : tensor<2x4xf32> loc("rnn")
      %16 = stablehlo.constant dense<1> : tensor<i32> loc("rnn")
      %17 = stablehlo.add %2, %16 : tensor<i32> loc("rnn")
      %18 = stablehlo.reshape %3 : (tensor<2x4xf32>) -> tensor<1x2x4xf32> loc("rnn")
      %19 = stablehlo.dynamic_update_slice %6, %18, %2, %10, %10 : (tensor<6x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x2x4xf32> loc("rnn")
      stablehlo.return %17, %15, %4, %5, %19 : tensor<i32>, tensor<2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x4xf32>
    } loc("rnn")
    %20 = stablehlo.constant dense<0.0> : tensor<f32>
    %21 = stablehlo.reduce(%7#1 init: %20) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    %22 = stablehlo.constant dense<1.0> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %24 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
    %25 = stablehlo.constant dense<0.0> : tensor<6x2x7xf32> loc("rnn")
    %26 = stablehlo.constant dense<0.0> : tensor<6x2x4xf32> loc("rnn")
    %34:7 = stablehlo.while(%27 = %24, %28 = %23, %29 = %7#4, %30 = %arg0, %31 = %arg2, %32 = %25, %33 = %26) : tensor<i32>, tensor<2x4xf32>, tensor<6x2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x7xf32>, tensor<6x2x4xf32>
    cond {
      %35 = stablehlo.constant dense<6> : tensor<i32> loc("rnn")
      %36 = stablehlo.compare LT, %27, %35 : (tensor<i32>, tensor<i32>) -> tensor<i1> loc("rnn")
      stablehlo.return %36 : tensor<i1>
    } do {
      %37 = stablehlo.constant dense<5> : tensor<i32> loc("rnn")
      %38 = stablehlo.subtract %37, %27 : tensor<i32> loc("rnn")
      %39 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
      %40 = stablehlo.dynamic_slice %29, %38, %39, %39, sizes = [1, 2, 4] : (tensor<6x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32> loc("rnn")
      %41 = stablehlo.reshape %40 : (tensor<1x2x4xf32>) -> tensor<2x4xf32> loc("rnn")
      %42 = stablehlo.dynamic_slice %30, %38, %39, %39, sizes = [1, 2, 3] : (tensor<6x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32> loc("rnn")
      %43 = stablehlo.reshape %42 : (tensor<1x2x3xf32>) -> tensor<2x3xf32> loc("rnn")
      %44 = stablehlo.concatenate %43, %41, dim = 1 : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32> loc("rnn")
      %45 = stablehlo.dot_general %44, %31, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x7xf32>, tensor<7x4xf32>) -> tensor<2x4xf32> loc("rnn")
      %46 = stablehlo.tanh %45 : tensor<2x4xf32> loc("rnn")
      %47 = stablehlo.multiply %46, %46 : tensor<2x4xf32> loc("rnn")
      %48 = stablehlo.constant dense<1.0> : tensor<f32> loc("rnn")
      %49 = stablehlo.broadcast_in_dim %48, dims = [] : (tensor<f32>) -> tensor<2x4xf32> loc("rnn")
      %50 = stablehlo.subtract %49, %47 : tensor<2x4xf32> loc("rnn")
      %51 = stablehlo.multiply %28, %50 : tensor<2x4xf32> loc("rnn")
      %52 = stablehlo.dot_general %51, %31, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<7x4xf32>) -> tensor<2x7xf32> loc("rnn")
      %53 = stablehlo.slice %52 [0:2, 3:7] : (tensor<2x7xf32>) -> tensor<2x4xf32> loc("rnn")
      %54 = stablehlo.constant dense<1> : tensor<i32> loc("rnn")
      %55 = stablehlo.add %27, %54 : tensor<i32> loc("rnn")
      %56 = stablehlo.reshape %44 : (tensor<2x7xf32>) -> tensor<1x2x7xf32> loc("rnn")
      %57 = stablehlo.dynamic_update_slice %32, %56, %38, %39, %39 : (tensor<6x2x7xf32>, tensor<1x2x7xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x2x7xf32> loc("rnn")
      %58 = stablehlo.reshape %51 : (tensor<2x4xf32>) -> tensor<1x2x4xf32> loc("rnn")
      %59 = stablehlo.dynamic_update_slice %33, %58, %38, %39, %39 : (tensor<6x2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x2x4xf32> loc("rnn")
      stablehlo.return %55, %53, %29, %30, %31, %57, %59 : tensor<i32>, tensor<2x4xf32>, tensor<6x2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x7xf32>, tensor<6x2x4xf32>
    } loc("rnn")
    %60 = stablehlo.reshape %34#5 : (tensor<6x2x7xf32>) -> tensor<12x7xf32> loc("rnn")
    %61 = stablehlo.reshape %34#6 : (tensor<6x2x4xf32>) -> tensor<12x4xf32> loc("rnn")
    %62 = stablehlo.dot_general %60, %61, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<12x7xf32>, tensor<12x4xf32>) -> tensor<7x4xf32> loc("rnn")
    return %21, %62, %34#1 : tensor<f32>, tensor<7x4xf32>, tensor<2x4xf32>
  }
}
