module @case attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<6x2xf32> loc("x"), %arg1: tensor<i32> loc("index")) -> (tensor<2xf32> {jax.result_info = "sum"}, tensor<6x2xf32> {jax.result_info = "x"}) {
    %0:2 = "stablehlo.case"(%arg1) (
    {
      %1 = stablehlo.exponential %arg0 : tensor<6x2xf32> loc("parts")
      %2 = stablehlo.constant dense<0.0> : tensor<f32> loc("parts")
      %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [0] : (tensor<6x2xf32>, tensor<f32>) -> tensor<2xf32> loc("parts")
      stablehlo.return %3, %arg0 : tensor<2xf32>, tensor<6x2xf32>
    }, {
      %4 = stablehlo.slice %arg0 [0:4, 0:2] : (tensor<6x2xf32>) -> tensor<4x2xf32> loc("parts")
      %5 = stablehlo.exponential %4 : tensor<4x2xf32> loc("parts")
      %6 = stablehlo.constant dense<0.0> : tensor<f32> loc("parts")
      %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.add across dimensions = [0] : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32> loc("parts")
      stablehlo.return %7, %arg0 : tensor<2xf32>, tensor<6x2xf32>
    }) : (tensor<i32>) -> (tensor<2xf32>, tensor<6x2xf32>) loc("parts")
    return %0#0, %0#1 : tensor<2xf32>, tensor<6x2xf32>
  }
}
