module @while_loop attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3xf32> loc("x"), %arg1: tensor<f32> loc("limit")) -> (tensor<3xf32> {jax.result_info = "x"}, tensor<i32> {jax.result_info = "steps"}) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %4:3 = stablehlo.while(%1 = %arg0, %2 = %0, %3 = %arg1) : tensor<3xf32>, tensor<i32>, tensor<f32>
    cond {
      %5 = stablehlo.multiply %1, %1 : tensor<3xf32>
      %6 = stablehlo.constant dense<0.0> : tensor<f32>
      %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
      %8 = stablehlo.compare LT, %7, %3 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %8 : tensor<i1>
    } do {
      %9 = stablehlo.constant dense<2.0> : tensor<f32>
      %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<3xf32>
      %11 = stablehlo.multiply %1, %10 : tensor<3xf32>
      %12 = stablehlo.constant dense<1> : tensor<i32>
      %13 = stablehlo.add %2, %12 : tensor<i32>
      stablehlo.return %11, %13, %3 : tensor<3xf32>, tensor<i32>, tensor<f32>
    }
    return %4#0, %4#1 : tensor<3xf32>, tensor<i32>
  }
}
