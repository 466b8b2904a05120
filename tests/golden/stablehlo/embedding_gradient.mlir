module @embedding_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<100x8xf32> loc("embedding/table"), %arg1: tensor<4x6xi32> loc("ids")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<100x8xf32> {jax.result_info = "embedding/table"}) {
    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<100x8xf32>, tensor<4x6xi32>) -> tensor<4x6x8xf32> loc("embedding")
    %1 = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] : (tensor<4x6x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %3 = stablehlo.constant dense<6.0> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %5 = stablehlo.divide %2, %4 : tensor<4x8xf32>
    %6 = stablehlo.multiply %5, %5 : tensor<4x8xf32>
    %7 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.reduce(%6 init: %7) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    %9 = stablehlo.add %5, %5 : tensor<4x8xf32>
    %10 = stablehlo.divide %9, %4 : tensor<4x8xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 2] : (tensor<4x8xf32>) -> tensor<4x6x8xf32>
    %12 = stablehlo.constant dense<0.0> : tensor<f32> loc("embedding")
    %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<100x8xf32> loc("embedding")
    %14 = stablehlo.constant dense<0> : tensor<i32> loc("embedding")
    %15 = stablehlo.broadcast_in_dim %14, dims = [] : (tensor<i32>) -> tensor<4x6xi32> loc("embedding")
    %16 = stablehlo.maximum %arg1, %15 : tensor<4x6xi32> loc("embedding")
    %17 = stablehlo.constant dense<99> : tensor<i32> loc("embedding")
    %18 = stablehlo.broadcast_in_dim %17, dims = [] : (tensor<i32>) -> tensor<4x6xi32> loc("embedding")
    %19 = stablehlo.minimum %16, %18 : tensor<4x6xi32> loc("embedding")
    %20 = "stablehlo.scatter"(%13, %19, %11) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%21: tensor<f32>, %22: tensor<f32>):
      %23 = stablehlo.add %21, %22 : tensor<f32> loc("embedding")
      stablehlo.return %23 : tensor<f32>
    }) : (tensor<100x8xf32>, tensor<4x6xi32>, tensor<4x6x8xf32>) -> tensor<100x8xf32> loc("embedding")
    return %8, %20 : tensor<f32>, tensor<100x8xf32>
  }
}
