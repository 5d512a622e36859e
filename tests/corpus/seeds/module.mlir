module @m {
  func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.tanh %0 : tensor<4x6xf32>
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.maximum %1, %2 : tensor<4x6xf32>
    %4 = stablehlo.reshape %3 : (tensor<4x6xf32>) -> tensor<2x12xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x12xf32>) -> tensor<12x2xf32>
    %6 = stablehlo.slice %5 [0:12:3, 0:2] : (tensor<12x2xf32>) -> tensor<4x2xf32>
    %7 = stablehlo.pad %6, %c, low = [0, 1], high = [0, 3], interior = [0, 0] : (tensor<4x2xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %7 : tensor<4x6xf32>
  }
}
