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
    %24 = stablehlo.constant dense<0.0> : tensor<f32> loc("rnn")
    %25 = stablehlo.broadcast_in_dim %24, dims = [] : (tensor<f32>) -> tensor<7x4xf32> loc("rnn")
    %26 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
    %27 = stablehlo.constant dense<0.0> : tensor<6x2x3xf32> loc("rnn")
    %35:7 = stablehlo.while(%28 = %26, %29 = %23, %30 = %25, %31 = %7#4, %32 = %arg0, %33 = %arg2, %34 = %27) : tensor<i32>, tensor<2x4xf32>, tensor<7x4xf32>, tensor<6x2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x3xf32>
    cond {
      %36 = stablehlo.constant dense<6> : tensor<i32> loc("rnn")
      %37 = stablehlo.compare LT, %28, %36 : (tensor<i32>, tensor<i32>) -> tensor<i1> loc("rnn")
      stablehlo.return %37 : tensor<i1>
    } do {
      %38 = stablehlo.constant dense<5> : tensor<i32> loc("rnn")
      %39 = stablehlo.subtract %38, %28 : tensor<i32> loc("rnn")
      %40 = stablehlo.constant dense<0> : tensor<i32> loc("rnn")
      %41 = stablehlo.dynamic_slice %31, %39, %40, %40, sizes = [1, 2, 4] : (tensor<6x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32> loc("rnn")
      %42 = stablehlo.reshape %41 : (tensor<1x2x4xf32>) -> tensor<2x4xf32> loc("rnn")
      %43 = stablehlo.dynamic_slice %32, %39, %40, %40, sizes = [1, 2, 3] : (tensor<6x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32> loc("rnn")
      %44 = stablehlo.reshape %43 : (tensor<1x2x3xf32>) -> tensor<2x3xf32> loc("rnn")
      %45 = stablehlo.concatenate %44, %42, dim = 1 : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32> loc("rnn")
      %46 = stablehlo.dot_general %45, %33, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x7xf32>, tensor<7x4xf32>) -> tensor<2x4xf32> loc("rnn")
      %47 = stablehlo.tanh %46 : tensor<2x4xf32> loc("rnn")
      %48 = stablehlo.multiply %47, %47 : tensor<2x4xf32> loc("rnn")
      %49 = stablehlo.constant dense<1.0> : tensor<f32> loc("rnn")
      %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<f32>) -> tensor<2x4xf32> loc("rnn")
      %51 = stablehlo.subtract %50, %48 : tensor<2x4xf32> loc("rnn")
      %52 = stablehlo.multiply %29, %51 : tensor<2x4xf32> loc("rnn")
      %53 = stablehlo.dot_general %52, %33, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<7x4xf32>) -> tensor<2x7xf32> loc("rnn")
      %54 = stablehlo.dot_general %45, %52, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x7xf32>, tensor<2x4xf32>) -> tensor<7x4xf32> loc("rnn")
      %55 = stablehlo.slice %53 [0:2, 0:3] : (tensor<2x7xf32>) -> tensor<2x3xf32> loc("rnn")
      %56 = stablehlo.slice %53 [0:2, 3:7] : (tensor<2x7xf32>) -> tensor<2x4xf32> loc("rnn")
      %57 = stablehlo.add %30, %54 : tensor<7x4xf32> loc("rnn")
      %58 = stablehlo.constant dense<1> : tensor<i32> loc("rnn")
      %59 = stablehlo.add %28, %58 : tensor<i32> loc("rnn")
      %60 = stablehlo.reshape %55 : (tensor<2x3xf32>) -> tensor<1x2x3xf32> loc("rnn")
      %61 = stablehlo.dynamic_update_slice %34, %60, %39, %40, %40 : (tensor<6x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<6x2x3xf32> loc("rnn")
      stablehlo.return %59, %56, %57, %31, %32, %33, %61 : tensor<i32>, tensor<2x4xf32>, tensor<7x4xf32>, tensor<6x2x4xf32>, tensor<6x2x3xf32>, tensor<7x4xf32>, tensor<6x2x3xf32>
    } loc("rnn")
    return %21, %35#2, %35#1 : tensor<f32>, tensor<7x4xf32>, tensor<2x4xf32>
  }
}
